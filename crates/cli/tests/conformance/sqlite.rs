//! A database on a mount, with a rollback journal and with a write-ahead log (shared mmap).

use std::process::Command;

use crate::mount::{self, Mount};
use crate::programs;

pub(crate) fn query(file: &std::path::Path, sql: &str) -> String {
    let output = programs::run(Command::new("sqlite3").arg(file).arg(sql));
    String::from_utf8(output.stdout).expect("UTF-8")
}

pub(crate) fn fill(journal: &str) -> String {
    format!(
        "pragma journal_mode={journal};
         create table t(id integer primary key, word text);
         with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
             insert into t select i, hex(i * 7919 % 65536) from n;
         update t set word = word || word where id % 3 = 0;
         delete from t where id % 5 = 0;
         create index words on t(word);
         vacuum;"
    )
}

#[test]
fn sqlite_on_a_mount_equals_sqlite_on_a_directory() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    if !programs::is_installed("sqlite3") {
        return programs::skip("sqlite3 is not installed");
    }
    let plain = tempfile::tempdir().expect("scratch");
    let mut mount = Mount::new(&["--policy", "always", "--size", "1M", "--max-dirty-age", "200ms"]);
    for journal in ["delete", "wal"] {
        for root in [plain.path(), &mount.path()] {
            query(&root.join(journal), &fill(journal));
        }
        assert_eq!(query(&mount.path().join(journal), "pragma integrity_check"), "ok\n");
    }
    mount.unmount();
    for journal in ["delete", "wal"] {
        let [left, right] =
            [plain.path(), &mount.origin()].map(|root| query(&root.join(journal), ".dump"));
        assert!(left == right, "{journal}: the dumps differ");
    }
}
