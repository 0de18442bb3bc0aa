//! `halocline bench metadata`: a real store, small and fast; no figure is judged.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use halocline_api::control::metrics::Section;
use halocline_testkit::fuse_device;
use halocline_testkit::plot::Plot;
use halocline_testkit::program;
use halocline_testkit::redis_cluster::RedisCluster;
use halocline_testkit::redis_server::RedisServer;
use halocline_testkit::skipping::skip;
use serde_json::Value;

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program!());
    command.args(["bench", "metadata", "--quick", "--files", "20"]).args(args);
    command.current_dir(dir).env("TMPDIR", dir);
    command
}

fn bench(dir: &Path, args: &[&str]) -> Output {
    command(dir, args).output().unwrap()
}

fn results(done: &Output) -> Value {
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let results: Value = serde_json::from_slice(&done.stdout).unwrap();
    let section = Section::find("halocline bench metadata").unwrap();
    assert_eq!(section.undescribed(&results), [""; 0], "keys that docs/METRICS.md does not have");
    results
}

#[test]
fn each_operation_is_measured_and_a_large_directory_is_listed_once() {
    if Command::new("redis-server").arg("--version").output().is_err() {
        skip("there is no redis-server");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let args = [
        "--clients",
        "1,3",
        "--entries",
        "2500",
        "--json",
        "--store",
        "--simulate",
        "--plot",
        "p.svg",
    ];
    let found = results(&bench(dir.path(), &args));
    assert_eq!(found["own_store"], true);
    let rows = found["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 9);
    for row in rows {
        let clients = row["clients"].as_u64().unwrap();
        assert_eq!(row["operations"], clients * 20, "{row}");
        let trips = row["round_trips_per_operation"].as_f64().unwrap();
        // As docs/decisions/0042-names-by-intents.md has them; a rename reads both names.
        let expected = match row["operation"].as_str().unwrap() {
            "create" | "stat" => 1.0,
            "list" => 1.0 / 20.0,
            "rename" => 3.0,
            "move" => 6.0,
            _ => 2.0,
        };
        // What a client knows of a directory that it changes alone, it does not ask for.
        let may_know = ["rename", "unlink"].contains(&row["operation"].as_str().unwrap());
        let is_right = (trips - expected).abs() < 1e-9;
        assert!(is_right || may_know && trips >= 1.0 && trips < expected, "{row}");
        let is_compared = row["operation"] == "create" && found["why_no_native"].is_null();
        assert_eq!(row["ratio"].is_f64(), is_compared, "{row}");
    }
    assert_eq!((&found["large"]["entries"], &found["large"]["pages"]), (&2500.into(), &3.into()));
    let simulation = &found["simulation"];
    assert_eq!(simulation["points"].as_array().unwrap().len(), 2);
    assert!(simulation["master_us"].as_f64().unwrap() > 0.0, "{simulation}");
    let nodes = |row: &Value| row["nodes"].as_u64().unwrap();
    assert_eq!(simulation["rows"].as_array().unwrap().iter().map(nodes).max(), Some(10_000));
    assert!(Plot::read(&dir.path().join("p.svg")).mentions("bench metadata"));
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "only the plot is left: {left:?}");
}

#[test]
fn a_store_that_runs_has_none_of_it_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    if let Some(server) = RedisServer::start(&[]) {
        let args = ["--clients", "2", "--json", "--store", &server.url()];
        let found = results(&bench(dir.path(), &args));
        assert_eq!(found["own_store"], false);
        assert_eq!(server.command(&["DBSIZE"]).trim(), ":0");
    }
    if let Some(cluster) = RedisCluster::start(&[]) {
        let args = ["--clients", "2", "--json", "--store", &cluster.urls()];
        let found = results(&bench(dir.path(), &args));
        assert_eq!(found["why_no_native"], "it asks one server only");
        for server in 0..3 {
            assert_eq!(cluster.command(server, &["DBSIZE"]), ":0");
        }
    }
}

#[test]
fn clusters_of_so_many_masters_are_measured_in_turn_and_leave_nothing() {
    if Command::new("redis-server").arg("--version").output().is_err() {
        skip("there is no redis-server");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let args = ["--store", "--masters", "1,3", "--clients", "1,2", "--plot", "p.svg"];
    let found = results(&bench(dir.path(), &[&args[..], &["--json"]].concat()));
    let rows = found["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 2 * 9);
    for (masters, clients) in [(1, 1), (1, 2), (3, 1), (3, 2)] {
        let of = rows.iter().filter(|row| row["masters"] == masters && row["clients"] == clients);
        let operations: Vec<_> = of.map(|row| row["operations"].as_u64().unwrap()).collect();
        assert_eq!(operations, [clients * 20; 9], "{masters} masters");
    }
    let worked = |row: &Value| row["server_us_per_operation"].as_f64().is_some_and(|us| us > 0.0);
    assert!(rows.iter().all(worked), "{rows:?}");
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "only the plot is left: {left:?}");
    let told = bench(dir.path(), &args);
    let told = format!("{told:?}");
    assert!(told.contains("by 2 clients:") && told.contains("with 3 masters"), "{told}");
    for refused in [&["--masters", "2"][..], &["--masters", "2", "--store", "redis://127.0.0.1:1"]]
    {
        let done = bench(dir.path(), refused);
        assert_eq!(done.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&done.stderr).contains("give --store"), "{done:?}");
    }
}

#[test]
fn a_simulation_needs_a_server_of_its_own_and_a_single_client() {
    let dir = tempfile::tempdir().unwrap();
    for args in [&["--store", "redis://127.0.0.1:1"][..], &["--store", "--clients", "2,4"]] {
        let done = bench(dir.path(), &[args, &["--simulate"]].concat());
        assert_eq!(done.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&done.stderr).contains("1 among --clients"), "{done:?}");
    }
}

#[test]
fn mounts_are_measured_beside_a_tier_of_one_node_and_the_disk() {
    if let Some(reason) = fuse_device::obstacle() {
        skip(reason);
        return;
    }
    if Command::new("redis-server").arg("--version").output().is_err() {
        skip("there is no redis-server");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let args = ["--nodes", "1,2", "--entries", "1000", "--json", "--plot", "p.svg"];
    // Regression: the mounts gave their own server, which has none, the password of the user's.
    let mut command = command(dir.path(), &args);
    let found = results(&command.env("HALOCLINE_CLUSTER_PASSWORD", "of another").output().unwrap());
    let large = &found["large"];
    assert_eq!(
        [&large["entries"], &large["clients"], &large["pages"]],
        [&1000.into(), &2.into(), &Value::Null]
    );
    let positive = ["create_per_second", "own_create_per_second", "ratio", "resident_bytes_most"];
    for key in positive {
        assert!(large[key].as_f64().unwrap() > 0.0, "{key} of {large}");
    }
    let rows = found["mounts"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 3 * 9);
    for row in rows {
        assert_eq!(row["operations"], row["nodes"].as_u64().unwrap() * 20, "{row}");
        assert!(row["per_second"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["of_tier"].is_f64(), row["system"] != "tier", "{row}");
    }
    assert!(Plot::read(&dir.path().join("p.svg")).mentions("bench metadata"));
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "only the plot is left: {left:?}");
    let refused = bench(dir.path(), &["--masters", "1"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--store"));
}
