//! Two mounts with caches of their own over one origin, with a real store between them (I11).

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Output;
use std::thread;

use halocline_api::control::metrics::Section;
use halocline_testkit::nodes::Nodes;
use halocline_testkit::program;
use halocline_testkit::redis_cluster::{MASTERS, RedisCluster};
use halocline_testkit::redis_server::RedisServer;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::waiting::eventually;
use serde_json::Value;

fn two_nodes() -> Option<Nodes> {
    Nodes::new(program!(), &[])
}

/// Gives all sessions a lease that has just begun, however long ago they renewed it on a slow machine.
fn prolong_leases(nodes: &Nodes) {
    let script = "local now = redis.call('TIME')[1] * 1000
        for _, key in ipairs(redis.call('KEYS', 'halocline:*:leases')) do
          for _, session in ipairs(redis.call('HKEYS', key)) do
            redis.call('HSET', key, session, string.format('%.0f', now + 30000))
          end
        end";
    nodes.store.command(&["EVAL", script, "0"]);
}

#[test]
fn i13_a_node_that_was_killed_comes_back_at_once_with_what_it_wrote() {
    let Some(nodes) = two_nodes() else { return };
    let [file, beside] = nodes.open("file");
    file.write_all_at(&vec![7; 300_000], 0).unwrap();
    drop(file);
    nodes.kill("one");
    prolong_leases(&nodes);
    let gone = nodes.cluster("recover", &["one"]);
    assert_eq!(gone.status.code(), Some(2), "{}", said(&gone));
    assert!(said(&gone).contains("its lease runs"), "{}", said(&gone));
    let again = nodes.mount("one", "cache");
    assert!(again.status.success(), "{}", said(&again));
    let mut found = vec![0; 300_000];
    beside.read_exact_at(&mut found, 0).unwrap();
    assert!(found.iter().all(|byte| *byte == 7));
    let listed = nodes.cluster("nodes", &["--json"]);
    let listed: Value = serde_json::from_str(&written(&listed)).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    let section = Section::find("halocline cluster nodes").unwrap();
    assert_eq!(section.undescribed(&listed), [""; 0]);
    // Programs do not see the list, and make nothing in its place.
    let list = nodes.scratch.path("one").join(".halocline-cluster");
    assert!(!list.exists());
    assert_eq!(fs::create_dir(&list).unwrap_err().raw_os_error(), Some(libc::EPERM));
    assert_eq!(
        fs::rename(nodes.scratch.path("one/file"), &list).unwrap_err().raw_os_error(),
        Some(libc::EPERM)
    );
    assert_eq!(fs::remove_dir(&list).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    let names = |dir: &str| fs::read_dir(nodes.scratch.path(dir)).unwrap().count();
    assert_eq!(names("one") + 1, names("origin"));
    // A mount that is not part of it would see old bytes, on any machine, also of a part of the origin.
    drop(beside);
    nodes.scratch.succeed(&["umount", "one"]);
    nodes.kill("other");
    fs::create_dir_all(nodes.scratch.path("cache3")).unwrap();
    let alone = nodes.scratch.halocline(&["mount", "origin", "one", "--cache", "cache3"]);
    assert_eq!(alone.status.code(), Some(2), "{}", said(&alone));
    assert!(said(&alone).contains("with --cluster"), "{}", said(&alone));
    fs::create_dir_all(nodes.scratch.path("origin/part")).unwrap();
    let url = nodes.store.url();
    let part = ["mount", "origin/part", "one", "--cache", "cache3", "--cluster", &url];
    for part in [&part[..], &part[..5]] {
        let part = nodes.scratch.halocline(part);
        assert_eq!(part.status.code(), Some(2), "{}", said(&part));
        assert!(said(&part).contains("with --cluster"), "{}", said(&part));
    }
}

/// Lets the entry of the session of `one` say that its cache is in another directory.
fn name_cache_of_one(scratch: &Scratch, name: &str) {
    let entries = fs::read_dir(scratch.path("origin/.halocline-cluster")).unwrap();
    let texts = entries.map(|entry| entry.unwrap().path());
    let mut texts = texts.filter_map(|path| Some((fs::read_to_string(&path).ok()?, path)));
    let (text, path) = texts.find(|(text, _)| text.contains(r#""node":"one""#)).unwrap();
    let [was, is] = ["cache", name].map(|name| format!("\"{}\"", scratch.path(name).display()));
    assert!(text.contains(&was), "{text}");
    fs::write(path, text.replace(&was, &is)).unwrap();
}

/// A mount on a copy of a living node's cache brought the copy's old bytes to the origin, and only then saw that the
/// original lives.
#[test]
fn i12_a_copy_of_a_living_nodes_cache_brings_nothing_to_the_origin() {
    let Some(nodes) = two_nodes() else { return };
    let [file, _beside] = nodes.open("file");
    file.write_all_at(&vec![7; 300_000], 0).unwrap();
    let mut copy = std::process::Command::new("cp");
    copy.arg("-a").args(["cache", "copy"].map(|name| nodes.scratch.path(name)));
    assert!(copy.status().unwrap().success());
    file.write_all_at(&vec![8; 300_000], 0).unwrap();
    fs::create_dir(nodes.scratch.path("third")).unwrap();
    for same_path in [false, true] {
        if same_path {
            // So it is in another container of this machine: the session ended, as if its process were gone.
            name_cache_of_one(&nodes.scratch, "copy");
        }
        let refused = nodes.mount("third", "copy");
        assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
        assert!(said(&refused).contains("has the same cache, and lives"), "{}", said(&refused));
        let on_origin = fs::read(nodes.scratch.path("origin/file")).unwrap();
        assert!(!on_origin.contains(&7), "what the copy has is old");
    }
    drop(file);
    nodes.scratch.succeed(&["umount", "one"]);
    assert!(fs::read(nodes.scratch.path("origin/file")).unwrap() == vec![8; 300_000]);
}

#[test]
fn i13_what_nodes_that_are_gone_had_is_recovered_or_given_up_by_name() {
    let Some(nodes) = two_nodes() else { return };
    for (node, name) in [("one", "kept"), ("other", "lost")] {
        fs::write(nodes.scratch.path(node).join(name), [node.as_bytes()[1]; 5000]).unwrap();
    }
    for node in ["one", "other"] {
        nodes.kill(node);
    }
    eventually("their leases are over", || {
        let listed: Value =
            serde_json::from_str(&written(&nodes.cluster("nodes", &["--json"]))).unwrap();
        listed.as_array().unwrap().iter().all(|node| node["lease_ms"] == 0)
    });
    // On another machine, or after a disk was put elsewhere, the name leads to something else.
    let [cache, moved] = ["cache", "moved"].map(|name| nodes.scratch.path(name));
    fs::rename(&cache, &moved).unwrap();
    fs::create_dir(&cache).unwrap();
    for there in [&[][..], &["--cache", "cache2"]] {
        let refused = nodes.cluster("recover", &[&["one"], there].concat());
        assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
        assert!(said(&refused).contains("on this machine is"), "{}", said(&refused));
    }
    assert_eq!(fs::read_dir(&cache).unwrap().count(), 0, "nothing was made there");
    let recovered = nodes.cluster("recover", &["one", "--cache", "moved", "--json"]);
    assert!(recovered.status.success(), "{}", said(&recovered));
    let recovered = json(&recovered);
    let section = Section::find("halocline cluster recover").unwrap();
    assert_eq!(section.undescribed(&recovered), [""; 0]);
    assert_eq!((&recovered[0]["node"], &recovered[0]["is_ended"]), (&"one".into(), &true.into()));
    assert!(recovered[0]["bytes"].as_u64().unwrap() >= 5000, "{recovered}");
    assert!(fs::read(nodes.scratch.path("origin/kept")).unwrap() == [b'n'; 5000]);
    for rest in [&["other", "--dry-run"][..], &["other", "--dry-run", "--json"], &["other"]] {
        let forgotten = nodes.cluster("forget", rest);
        assert!(forgotten.status.success(), "{}", said(&forgotten));
        assert!(said(&forgotten).contains("origin/lost"), "{}", said(&forgotten));
        if rest.contains(&"--json") {
            let forgotten = json(&forgotten);
            let section = Section::find("halocline cluster forget").unwrap();
            assert_eq!(section.undescribed(&forgotten), [""; 0]);
            assert_eq!(forgotten[0]["is_ended"], false, "{forgotten}");
            let lost = forgotten[0]["files"][0].as_str().unwrap();
            assert!(lost.contains("origin/lost"), "{forgotten}");
        }
    }
    assert!(fs::read(nodes.scratch.path("origin/lost")).unwrap() != [b't'; 5000]);
    // It comes back after all: others may have written since what only it had.
    let refused = nodes.mount("other", "cache2");
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains("given up"), "{}", said(&refused));
    fs::write(nodes.scratch.path("origin/lost"), "newer").unwrap();
    let alone = nodes.scratch.halocline(&["mount", "origin", "other", "--cache", "cache2"]);
    assert!(alone.status.success(), "{}", said(&alone));
    assert_eq!(fs::read(nodes.scratch.path("other/lost")).unwrap(), b"newer");
    assert_eq!(nodes.scratch.halocline(&["umount", "other"]).status.code(), Some(4), "I9");
}

/// The processes of one job on one node share its engine; those of two nodes see each other.
#[test]
fn i11_runs_of_a_cluster_see_each_others_changes() {
    let Some(nodes) = two_nodes() else { return };
    fs::write(nodes.scratch.path("one/before"), "from one").unwrap();
    fs::create_dir_all(nodes.scratch.path("cache3")).unwrap();
    let url = nodes.store.url();
    let run =
        ["run", "--origin", "origin", "--cache", "cache3", "--cluster", &url, "--quiet", "--"];
    let script = format!(
        "cat {0}/before; printf 'from a run' > {0}/after; until [ -e {0}/go ]; do sleep 0.1; done",
        nodes.scratch.path("origin").display()
    );
    let run = [&run[..], &["sh", "-c", &script]].concat();
    // As the ranks of one machine are started: each by itself, all at once, with that machine's cache.
    let ranks = thread::scope(|scope| {
        let ranks = [0, 1].map(|_| scope.spawn(|| nodes.scratch.halocline(&run)));
        eventually("one of them wrote", || nodes.scratch.path("other/after").exists());
        fs::write(nodes.scratch.path("other/go"), "").unwrap();
        ranks.map(|rank| rank.join().unwrap())
    });
    for rank in ranks {
        assert!(rank.status.success(), "{}", said(&rank));
        assert_eq!(written(&rank), "from one");
    }
    assert_eq!(fs::read(nodes.scratch.path("other/after")).unwrap(), b"from a run");
}

#[test]
fn what_is_no_cluster_is_refused() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let mount = ["mount", "origin", "mnt", "--cache", "cache", "--cluster"];
    let tier = scratch.halocline(&["mount", "--tier", ".", "mnt", "--cluster", "redis://h"]);
    assert_eq!(tier.status.code(), Some(2), "{}", said(&tier));
    let socket = "redis+unix:///nowhere/socket";
    let away = said(&scratch.halocline(&[&mount[..], &[socket]].concat()));
    assert!(away.contains("/nowhere/socket") && !away.contains("rediss"), "{away}");
    for url in ["redis://127.0.0.1:1", "nonsense", "http://"] {
        let output = scratch.halocline(&[&mount[..], &[url]].concat());
        assert_eq!(output.status.code(), Some(2), "{url}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("--cluster"), "{said}");
        assert_eq!(said.matches("docs/CLUSTER.md").count(), 1, "{said}");
        assert_eq!(
            said.contains("such as redis://HOST:6379"),
            url != "redis://127.0.0.1:1",
            "{said}"
        );
    }
}

fn json(output: &Output) -> Value {
    serde_json::from_str(&written(output))
        .unwrap_or_else(|error| panic!("{error}: {}", said(output)))
}

/// Who holds what is told by name; a node that is gone is found by fsck, and ends it by what fsck names.
#[test]
fn what_nodes_hold_is_told_and_what_does_not_fit_is_found() {
    let Some(nodes) = two_nodes() else { return };
    fs::write(nodes.scratch.path("one/file"), [1; 10_000]).unwrap();
    let told = json(&nodes.cluster("status", &["--json"]));
    let section = Section::find("halocline cluster status").unwrap();
    assert_eq!(section.undescribed(&told), [""; 0]);
    assert_eq!(told["grants"], true, "{told}");
    assert_eq!(told["files"], 1, "{told}");
    let of = |told: &Value, name: &str| {
        let all = told["nodes"].as_array().unwrap();
        all.iter().find(|node| node["node"] == name).unwrap()["tokens"].clone()
    };
    assert_eq!(
        (&of(&told, "one")["exclusive"], &of(&told, "other")["files"]),
        (&1.into(), &0.into())
    );
    assert!(written(&nodes.cluster("status", &[])).contains("1 exclusive"));
    // A path on the origin, whole or below it.
    let absolute = nodes.scratch.path("origin/file");
    for file in ["file", absolute.to_str().unwrap()] {
        let told = json(&nodes.cluster("tokens", &[file, "--json"]));
        let section = Section::find("halocline cluster tokens").unwrap();
        assert_eq!(section.undescribed(&told), [""; 0]);
        assert_eq!(told["tokens"][0]["node"], "one", "{told}");
        assert_eq!(told["tokens"][0]["mode"], "exclusive", "{told}");
    }
    for (file, part) in [("none", "none"), ("/etc/passwd", "not below"), (".", "regular file")] {
        let refused = nodes.cluster("tokens", &[file]);
        assert_eq!(refused.status.code(), Some(2), "{file}: {}", said(&refused));
        assert!(said(&refused).contains(part), "{file}: {}", said(&refused));
    }
    // Regression: `recover` and `forget` would have meant both.
    let url = nodes.store.url();
    for dir in ["third", "cache3"] {
        fs::create_dir(nodes.scratch.path(dir)).unwrap();
    }
    for (name, part) in [("one", "a node is called one already"), ("", "a value is required")] {
        let third = ["mount", "origin", "third", "--cache", "cache3", "--cluster", &url];
        let refused = nodes.scratch.halocline(&[&third[..], &["--node", name]].concat());
        assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
        assert!(said(&refused).contains(part), "{}", said(&refused));
    }
    let clean = nodes.cluster("fsck", &[]);
    assert!(
        clean.status.success() && written(&clean).contains("no inconsistencies"),
        "{}",
        said(&clean)
    );
    nodes.kill("one");
    eventually("its lease is over", || {
        json(&nodes.cluster("nodes", &["--json"]))[0]["lease_ms"] == 0
            || json(&nodes.cluster("nodes", &["--json"]))[1]["lease_ms"] == 0
    });
    let found = nodes.cluster("fsck", &["--json"]);
    assert_eq!(found.status.code(), Some(1), "{}", said(&found));
    let problems = json(&found);
    let section = Section::find("halocline cluster fsck").unwrap();
    assert_eq!(section.undescribed(&problems), [""; 0]);
    assert_eq!(problems[0]["problem"], "gone", "{problems}");
    assert_eq!((&problems[0]["node"], &problems[0]["files"]), (&"one".into(), &1.into()));
    let recovered = nodes.cluster("recover", &["one"]);
    assert!(recovered.status.success(), "{}", said(&recovered));
    let clean = nodes.cluster("fsck", &[]);
    assert!(clean.status.success(), "{}", said(&clean));
}

/// Who waited for whom, and what is contended, is told by the mount itself.
#[test]
fn what_a_node_had_to_do_with_others_is_seen() {
    let Some(nodes) = two_nodes() else { return };
    let [one, other] = nodes.open("file");
    one.write_all_at(&[1; 10_000], 0).unwrap();
    let explain = |node: &str, direction: &str| {
        let file = format!("{node}/file");
        let asked = ["explain", &file, "0", "4096", "--direction", direction];
        let told = json(&nodes.halocline(&[&asked[..], &["--json"]].concat()));
        let section = Section::find("halocline explain PATH OFFSET").unwrap();
        assert_eq!(section.undescribed(&told), [""; 0]);
        (told["nodes"].as_str().unwrap_or_default().to_owned(), nodes.succeed(&asked))
    };
    assert_eq!(explain("one", "write").0, "", "it has the token");
    let (told, text) = explain("other", "read");
    assert!(told.contains("waits until node one"), "{told}");
    assert!(text.contains("nodes      it waits"), "{text}");
    let mut found = [0; 100];
    other.read_exact_at(&mut found, 0).unwrap();
    let (told, _) = explain("other", "read");
    assert!(told.contains("waited") && !told.contains("it waits"), "{told}");
    let tokens = |node: &str| {
        let status = nodes.status(node);
        let section = Section::find("halocline status").unwrap();
        assert_eq!(section.undescribed(&status), [""; 0]);
        status["report"]["cluster"].clone()
    };
    let (of_one, of_other) = (tokens("one"), tokens("other"));
    let count = |of: &Value, key: &str| of[key].as_u64().unwrap_or_else(|| panic!("{key}: {of}"));
    assert!(count(&of_one, "handovers") > 0, "{of_one}");
    for key in
        ["tokens", "files", "waits", "waited_us", "longest_wait_us", "round_trips", "lease_left_ms"]
    {
        assert!(count(&of_other, key) > 0, "{key}: {of_other}");
    }
    let text = nodes.succeed(&["status", "other"]);
    assert!(text.contains("token waits 1 request"), "{text}");
    // Both write the same bytes by turns, until nobody caches them any more.
    eventually("it is contended", || {
        for file in [&one, &other] {
            file.write_all_at(&[2; 100], 0).unwrap();
        }
        let told = explain("one", "write").0;
        // For some seconds.
        told.contains("goes to the origin")
            && told.contains("node other")
            && count(&tokens("one"), "contended_files") == 1
    });
    drop((one, other));
    a_run_reports_it(&nodes);
}

/// And a mount without other nodes has nothing to tell of them.
fn a_run_reports_it(nodes: &Nodes) {
    let section = Section::find("--report").unwrap();
    fs::create_dir_all(nodes.path("cache3")).unwrap();
    let url = nodes.store.url();
    let run = ["run", "--origin", "origin", "--cache", "cache3", "--cluster", &url, "--quiet"];
    let file = nodes.path("origin/file");
    let command = ["--report", "report", "--", "cat", file.to_str().unwrap()];
    nodes.succeed(&[&run[..], &command].concat());
    let report: Value = serde_json::from_slice(&fs::read(nodes.path("report")).unwrap()).unwrap();
    assert_eq!(section.undescribed(&report), [""; 0]);
    assert!(report["cluster"]["asked"].as_u64() > Some(0), "{report}");
    let Some(alone) = Scratch::new(program!()) else { return };
    alone.succeed(&["mount", "origin", "mnt", "--cache", "cache"]);
    assert!(alone.status("mnt")["report"].get("cluster").is_none());
}

/// A session whose mount could not be made held up all others until somebody ended it.
#[test]
fn a_mount_that_fails_leaves_no_session() {
    let Some(nodes) = two_nodes() else { return };
    nodes.succeed(&["umount", "one"]);
    let listed = || nodes.listed().len();
    assert_eq!(listed(), 1);
    let url = nodes.store.url();
    let mount = ["mount", "origin", "one", "--cache", "cache", "--cluster", &url];
    // The session has begun, and the engine is there, when the control socket cannot be made.
    fs::create_dir_all(nodes.path("cache/control.sock/in the way")).unwrap();
    let refused = nodes.halocline(&mount);
    assert!(!refused.status.success(), "{}", said(&refused));
    assert_eq!(listed(), 1, "{}", said(&refused));
}

/// A mount whose tokens lie on a Redis Cluster; what of that does not answer is named.
#[test]
fn a_redis_cluster_serves_mounts_and_its_silent_part_is_named() {
    let Some(scratch) = Scratch::with_mountpoints(program!(), &["one"]) else { return };
    // Nobody takes the place of those that are killed, nor of others because the machine is slow.
    let settings = &["--cluster-require-full-coverage", "no", "--cluster-node-timeout", "10000"];
    let Some(mut store) = RedisCluster::start(settings) else { return };
    let url = store.urls();
    let ask = |what: &str, rest: &[&str]| {
        scratch.halocline(&[&["cluster", what, "origin", "--cluster", &url], rest].concat())
    };
    fs::create_dir_all(scratch.path("cache")).unwrap();
    let urls = format!("{},{}", store.url(4), store.url(0));
    scratch.succeed(&[
        "mount",
        "origin",
        "one",
        "--cache",
        "cache",
        "--cluster",
        &urls,
        "--node",
        "one",
    ]);
    fs::write(scratch.path("one/file"), [1; 10_000]).unwrap();
    let told = json(&ask("status", &["--json"]));
    assert_eq!((&told["grants"], &told["files"]), (&true.into(), &1.into()), "{told}");
    let told = json(&ask("tokens", &["file", "--json"]));
    assert_eq!(told["tokens"][0]["node"], "one", "{told}");
    assert!(ask("fsck", &[]).status.success());
    let id: Value =
        serde_json::from_slice(&fs::read(scratch.path("origin/.halocline-cluster/id")).unwrap())
            .unwrap();
    let members = format!("halocline:{{{}}}:members", id["id"].as_str().unwrap());
    let silent = (store.master_of(&members) + 1) % MASTERS;
    for server in [silent + MASTERS, silent] {
        store.kill(server);
    }
    let found = ask("fsck", &["--json"]);
    assert_eq!(found.status.code(), Some(1), "{}", said(&found));
    let problems = json(&found);
    assert_eq!(problems[0]["problem"], "silent", "{problems}");
    let port = store.url(silent).rsplit_once(':').unwrap().1.to_owned();
    assert!(problems[0]["what"].as_str().unwrap().contains(&port), "{problems}");
    assert!(written(&ask("status", &[])).contains(&port));
    assert!(written(&ask("nodes", &[])).contains("lives"));
    for server in [silent, silent + MASTERS] {
        store.revive(server);
    }
    store.wait_until_well();
    eventually("no inconsistencies", || ask("fsck", &[]).status.success());
    scratch.succeed(&["umount", "one"]);
    assert_eq!(fs::read(scratch.path("origin/file")).unwrap(), [1; 10_000]);
}

/// A password comes from the environment or from a file that nobody else reads, and is shown nowhere.
#[test]
fn a_password_is_read_from_a_private_file_only() {
    use std::os::unix::fs::PermissionsExt;
    let Some(scratch) = Scratch::new(program!()) else { return };
    let Some(store) = RedisServer::start(&["--requirepass", "s3cret"]) else { return };
    // As after a mount with the cluster.
    fs::create_dir(scratch.path("origin/.halocline-cluster")).unwrap();
    let file = scratch.path("password");
    fs::write(&file, "s3cret\n").unwrap();
    let url = store.url();
    let ask = |variables: &[(&str, &str)]| {
        let mut command = scratch.command(&["cluster", "nodes", "origin", "--cluster", &url]);
        command.envs(variables.iter().copied()).output().unwrap()
    };
    let path = file.to_str().unwrap();
    let in_file = ("HALOCLINE_CLUSTER_PASSWORD_FILE", path);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    for (variables, part) in [
        (&[][..], "--cluster"),
        (&[("HALOCLINE_CLUSTER_PASSWORD", "wrong")][..], "--cluster"),
        (&[in_file][..], "mode 0600"),
        (&[in_file, ("HALOCLINE_CLUSTER_PASSWORD", "s3cret")][..], "both set"),
        (&[("HALOCLINE_CLUSTER_PASSWORD_FILE", "/nowhere")][..], "/nowhere"),
    ] {
        let refused = ask(variables);
        assert_eq!(refused.status.code(), Some(2), "{variables:?}: {}", said(&refused));
        assert!(said(&refused).contains(part), "{variables:?}: {}", said(&refused));
        assert!(!said(&refused).contains("s3cret"), "{}", said(&refused));
    }
    // Nobody ever writes to it.
    let fifo = scratch.path("fifo");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
    let refused = ask(&[("HALOCLINE_CLUSTER_PASSWORD_FILE", fifo.to_str().unwrap())]);
    assert!(said(&refused).contains("mode 0600"), "{}", said(&refused));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    for variables in [in_file, ("HALOCLINE_CLUSTER_PASSWORD", "s3cret")] {
        let answered = ask(&[variables]);
        assert!(answered.status.success(), "{}", said(&answered));
    }
}
