//! A store that is reached over TLS, by a user with few rights: what is wrong is told, and no secret is.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::skipping::skip;
use halocline_testkit::waiting::eventually;
use tempfile::TempDir;

const SECRET: &str = "s3cret-of-the-store";
/// What docs/CLUSTER.md says that the user needs, and no more.
const RIGHTS: &str = "~halocline:* -@all +evalsha +eval +script|load +info +time +scan +blpop +@hash +@list +@sortedset +persist +pexpire";

/// Authorities and certificates of a test's own.
struct Certificates(TempDir);

impl Certificates {
    /// `None`, with the reason, where there is no program for them.
    fn new() -> Option<Self> {
        if Command::new("openssl").arg("version").stdout(Stdio::null()).status().is_err() {
            skip("there is no openssl");
            return None;
        }
        let all = Self(tempfile::tempdir().unwrap());
        for authority in ["ours", "theirs"] {
            all.openssl(&format!(
                "req -x509 {KEY} -keyout {authority}.key -out {authority}.pem -subj /CN={authority}"
            ));
        }
        for (name, host) in [("here", "localhost"), ("elsewhere", "elsewhere.example")] {
            fs::write(all.path("extensions"), format!("subjectAltName=DNS:{host}\n")).unwrap();
            all.openssl(&format!("req {KEY} -keyout {name}.key -out {name}.csr -subj /CN={host}"));
            all.openssl(&format!(
                "x509 -req -in {name}.csr -CA ours.pem -CAkey ours.key -CAcreateserial -out {name}.pem -extfile extensions"
            ));
        }
        Some(all)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn openssl(&self, words: &str) {
        let mut command = Command::new("openssl");
        let output = command.args(words.split(' ')).current_dir(self.0.path()).output().unwrap();
        assert!(output.status.success(), "{words}: {}", said(&output));
    }
}

const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

/// A server that speaks TLS only.
struct Server {
    _place: TempDir,
    process: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    /// With a certificate; `None`, with the reason, where no such server can be started.
    fn start(program: &str, certificates: &Certificates, name: &str) -> Option<Self> {
        let Ok(version) = Command::new(program).arg("--version").output() else {
            skip(format!("there is no {program}"));
            return None;
        };
        assert!(version.status.success());
        let place = tempfile::tempdir().unwrap();
        let settings = place.path().join("settings");
        for _ in 0..5 {
            let port =
                TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
            let file =
                |suffix: &str| certificates.path(&format!("{name}.{suffix}")).display().to_string();
            let text = format!(
                "port 0\ntls-port {port}\nbind 127.0.0.1\nsave \"\"\ndir {}\ntls-cert-file {}\ntls-key-file {}\n\
             tls-ca-cert-file {}\ntls-auth-clients no\nrequirepass {SECRET}\nuser node on >{SECRET} {RIGHTS}\n\
             user weak on >{SECRET} ~halocline:* -@all +info\n",
                place.path().display(),
                file("pem"),
                file("key"),
                certificates.path("ours.pem").display(),
            );
            fs::write(&settings, text).unwrap();
            let mut process =
                Command::new(program).arg(&settings).stdout(Stdio::null()).spawn().unwrap();
            let mut has_ended = false;
            eventually("the server listens", || {
                has_ended = process.try_wait().unwrap().is_some();
                has_ended || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
            });
            if has_ended {
                // Another program may have taken the port.
                continue;
            }
            return Some(Self { _place: place, process, port });
        }
        skip(format!("this {program} was built without TLS"));
        None
    }

    fn url(&self, user: &str) -> String {
        let user = if user.is_empty() { String::new() } else { format!("{user}@") };
        format!("rediss://{user}localhost:{}", self.port)
    }
}

/// A place whose password is in a file.
struct Site {
    scratch: Scratch,
    certificates: Certificates,
}

impl Site {
    fn new() -> Option<Self> {
        let scratch = Scratch::with_mountpoints(program!(), &["one", "other"])?;
        let certificates = Certificates::new()?;
        let file = scratch.path("password");
        fs::write(&file, format!("{SECRET}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::create_dir(scratch.path("origin/.halocline-cluster")).unwrap();
        fs::set_permissions(
            scratch.path("origin/.halocline-cluster"),
            fs::Permissions::from_mode(0o700),
        )
        .unwrap();
        Some(Self { scratch, certificates })
    }

    /// Runs the command with the certificates of an authority.
    fn halocline(&self, authority: &str, args: &[&str]) -> Output {
        let mut command = self.scratch.command(args);
        command.env("HALOCLINE_CLUSTER_PASSWORD_FILE", self.scratch.path("password"));
        command.env("SSL_CERT_FILE", self.certificates.path(authority));
        command.env_remove("SSL_CERT_DIR");
        command.output().unwrap()
    }

    fn nodes(&self, authority: &str, url: &str) -> Output {
        self.halocline(authority, &["cluster", "nodes", "origin", "--cluster", url])
    }
}

/// What is refused says why, with the server and without a secret.
#[track_caller]
fn is_refused(output: &Output, parts: &[&str]) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("store of tokens") && said.contains("docs/CLUSTER.md"), "{said}");
    for part in parts {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains(SECRET), "{said}");
}

#[test]
fn certificates_hosts_and_rights_that_are_wrong_are_told() {
    let Some(site) = Site::new() else { return };
    let Some(server) = Server::start("redis-server", &site.certificates, "here") else { return };
    let Some(elsewhere) = Server::start("redis-server", &site.certificates, "elsewhere") else {
        return;
    };
    let at = format!("localhost:{}", server.port);
    for user in ["", "node"] {
        let answered = site.nodes("ours.pem", &server.url(user));
        assert!(answered.status.success(), "{}", said(&answered));
    }
    is_refused(&site.nodes("theirs.pem", &server.url("")), &[&at, "certificate", "SSL_CERT_FILE"]);
    is_refused(&site.nodes("nothing.pem", &server.url("")), &["nothing.pem"]);
    is_refused(&site.nodes("ours.pem", &elsewhere.url("")), &["certificate", "name the host"]);
    let plain = server.url("").replace("rediss", "redis");
    is_refused(&site.nodes("ours.pem", &plain), &[&at, "rediss://"]);
    let unchecked = format!("{}/#insecure", server.url(""));
    is_refused(&site.nodes("ours.pem", &unchecked), &["#insecure"]);
    is_refused(&site.nodes("ours.pem", &server.url("weak")), &[&at, "user needs"]);
    is_refused(&site.nodes("ours.pem", &server.url("nobody")), &[&at]);
    fs::write(site.scratch.path("password"), "wrong\n").unwrap();
    is_refused(&site.nodes("ours.pem", &server.url("node")), &[&at]);
}

/// All that the command and the mounts write and show.
fn holds_secret(path: &Path) -> bool {
    if path.is_dir() && !path.is_symlink() {
        return fs::read_dir(path).unwrap().any(|entry| holds_secret(&entry.unwrap().path()));
    }
    let is_file = fs::symlink_metadata(path).is_ok_and(|stat| stat.is_file());
    let bytes = if is_file { fs::read(path).unwrap_or_default() } else { Vec::new() };
    bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes())
}

fn nodes_work_over_tls(program: &str) {
    let Some(site) = Site::new() else { return };
    let Some(server) = Server::start(program, &site.certificates, "here") else { return };
    let url = server.url("node");
    for (node, cache) in [("one", "cache"), ("other", "cache2")] {
        fs::create_dir_all(site.scratch.path(cache)).unwrap();
        let mount = ["mount", "origin", node, "--cache", cache, "--policy", "always"];
        let cluster = ["--cluster", &url, "--node", node];
        let mounted = site.halocline("ours.pem", &[&mount[..], &cluster].concat());
        assert!(mounted.status.success(), "{}", said(&mounted));
    }
    for number in 0..20 {
        let node = ["one", "other"][number % 2];
        fs::write(site.scratch.path(node).join("file"), number.to_string()).unwrap();
        let seen = fs::read_to_string(site.scratch.path(["other", "one"][number % 2]).join("file"));
        assert_eq!(seen.unwrap(), number.to_string());
    }
    let mut shown = String::new();
    for node in ["one", "other"] {
        let pid = site.scratch.pid(node).as_raw_nonzero();
        for name in ["cmdline", "environ"] {
            let text = fs::read(format!("/proc/{pid}/{name}")).unwrap();
            shown += &String::from_utf8_lossy(&text);
        }
        shown += &site.scratch.status(node).to_string();
    }
    for what in ["nodes", "status", "fsck"] {
        let output = site.halocline("ours.pem", &["cluster", what, "origin", "--cluster", &url]);
        assert!(output.status.success(), "{}", said(&output));
        shown += &(written(&output) + &said(&output));
    }
    // The store goes: what is said of that is in the logs.
    drop(server);
    let gone = site.nodes("ours.pem", &url);
    shown += &said(&gone);
    for node in ["one", "other"] {
        let ended = site.halocline("ours.pem", &["umount", "--force", node]);
        shown += &(written(&ended) + &said(&ended));
    }
    assert!(!shown.contains(SECRET), "{shown}");
    fs::remove_file(site.scratch.path("password")).unwrap();
    assert!(!holds_secret(site.scratch.root()), "a file has the secret");
}

#[test]
fn nodes_work_over_tls_with_few_rights_and_show_no_secret() {
    nodes_work_over_tls("redis-server");
    // Few systems have a package of it yet.
    if Command::new("valkey-server").arg("--version").output().is_ok() {
        nodes_work_over_tls("valkey-server");
    }
}
