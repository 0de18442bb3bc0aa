//! Hadoop on this machine: a `NameNode`, a `DataNode` for each directory it is given, and `MapReduce` jobs.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::sandbox::{last_lines, said, written};
use crate::skipping::skip;
use crate::waiting::eventually;

/// What Maven is asked for.
const LIBRARIES: &str = include_str!("hadoop-pom.xml");

/// Names the plugin's version: what an unnamed one is depends on that of Maven.
const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies";

const NAME_NODE: &str = "org.apache.hadoop.hdfs.server.namenode.NameNode";
const DATA_NODE: &str = "org.apache.hadoop.hdfs.server.datanode.DataNode";

/// Warnings to standard error.
const LOGGING: &str = "log4j.rootLogger=WARN,A
log4j.appender.A=org.apache.log4j.ConsoleAppender
log4j.appender.A.target=System.err
log4j.appender.A.layout=org.apache.log4j.PatternLayout
log4j.appender.A.layout.ConversionPattern=%d %p %c: %m%n
";

/// HDFS with its `NameNode`. Dropping it kills all its processes.
#[derive(Debug)]
pub struct Hadoop {
    place: TempDir,
    libraries: PathBuf,
    settings: Vec<String>,
    pages: u16,
    name_node: Child,
    data_nodes: Vec<(String, Child)>,
}

impl Drop for Hadoop {
    fn drop(&mut self) {
        let _ = self.name_node.kill();
        let _ = self.name_node.wait();
        for (_, process) in &mut self.data_nodes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Hadoop {
    /// An empty file system without `DataNodes`, with Hadoop's libraries below `kept`, where Maven puts them if they are
    /// missing; `None`, with the reason, where there is no Java or Maven, or Maven does not get them.
    ///
    /// # Panics
    /// If the `NameNode` does not start.
    pub fn start(kept: &Path) -> Option<Self> {
        let libraries = libraries(kept)?;
        let place = tempfile::tempdir().unwrap();
        let own = place.path().join("class-path");
        // A NameNode looks for the pages that it shows; there need not be any.
        for name in ["hdfs", "datanode"] {
            fs::create_dir_all(own.join("webapps").join(name)).unwrap();
        }
        fs::write(own.join("log4j.properties"), LOGGING).unwrap();
        // Some programs insist on it.
        fs::write(own.join("core-site.xml"), "<configuration/>").unwrap();
        // Somebody may get a port before the NameNode has it: then it ends, and says why.
        let ports = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let [port, pages] = ports.map(|listener| listener.local_addr().unwrap().port());
        let settings = settings(place.path(), port, pages);
        let formatted = java(place.path(), &libraries, NAME_NODE, &settings)
            .args(["-format", "-force"])
            .output()
            .unwrap();
        assert!(formatted.status.success(), "{}", said(&formatted));
        let mut name_node = java(place.path(), &libraries, NAME_NODE, &settings);
        let name_node = logged(&mut name_node, place.path(), "name-node");
        let data_nodes = Vec::new();
        let mut hadoop = Self { place, libraries, settings, pages, name_node, data_nodes };
        eventually("the NameNode answers", || {
            let ended = hadoop.name_node.try_wait().unwrap();
            assert!(ended.is_none(), "{}", last_lines(&hadoop.log("name-node")));
            hadoop.says("\"FSState\" : \"Operational\"")
        });
        Some(hadoop)
    }

    /// Starts a `DataNode` whose blocks lie in a directory; so many will then be alive.
    ///
    /// # Panics
    /// If it ends by itself.
    pub fn start_data_node(&mut self, name: &str, blocks: &Path, alive: usize) {
        let mut settings = self.settings.clone();
        settings.push(setting("dfs.datanode.data.dir", &format!("file://{}", blocks.display())));
        let mut process = java(self.place.path(), &self.libraries, DATA_NODE, &settings);
        let process = logged(&mut process, self.place.path(), name);
        self.data_nodes.push((name.to_owned(), process));
        let live = format!("\"NumLiveDataNodes\" : {alive},");
        eventually("the DataNode has reported", || {
            let ended = self.data_nodes.last_mut().unwrap().1.try_wait().unwrap();
            assert!(ended.is_none(), "{}", last_lines(&self.log(name)));
            self.says(&live)
        });
    }

    /// Kills a `DataNode`.
    pub fn kill_data_node(&mut self, name: &str) {
        self.data_nodes.retain_mut(|(of, process)| {
            let stays = of != name;
            if !stays {
                let _ = process.kill();
                let _ = process.wait();
            }
            stays
        });
    }

    /// Runs a program of Hadoop's, which must succeed; returns what it wrote to standard output.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn succeed(&self, class: &str, args: &[&str]) -> String {
        let done = java(self.place.path(), &self.libraries, class, &self.settings)
            .args(args)
            .output()
            .unwrap();
        assert!(done.status.success(), "{class} {args:?}: {} {}", written(&done), said(&done));
        written(&done)
    }

    /// Waits until each block has as many copies as it should have. The check looks at every block: the `NameNode`'s
    /// counters miss those whose copying timed out until it looks at these again.
    ///
    /// # Panics
    /// If some have not.
    #[track_caller]
    pub fn wait_for_copies(&self) {
        eventually("every block has its copies", || {
            let told = self.succeed("org.apache.hadoop.hdfs.tools.DFSck", &["/"]);
            told.contains(" Under-replicated blocks:\t0 (")
        });
    }

    /// Whether this is a line of what the `NameNode` says about itself.
    fn says(&self, line: &str) -> bool {
        const ASK: &[u8] =
            b"GET /jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState HTTP/1.0\r\n\r\n";
        let mut answer = String::new();
        let asked = TcpStream::connect((Ipv4Addr::LOCALHOST, self.pages)).and_then(|mut server| {
            server.write_all(ASK)?;
            server.read_to_string(&mut answer)
        });
        asked.is_ok() && answer.contains(line)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.place.path().join(format!("{name}.log"))
    }
}

/// Where Hadoop's libraries are.
fn libraries(kept: &Path) -> Option<PathBuf> {
    for (program, version) in [("java", "-version"), ("mvn", "-version")] {
        let done = Command::new(program).arg(version).stdin(Stdio::null()).output();
        if !done.is_ok_and(|done| done.status.success()) {
            skip(format!("there is no {program}"));
            return None;
        }
    }
    let at = kept.join("hadoop-3.3.6");
    if at.is_dir() {
        return Some(at);
    }
    // Made beside it and renamed: whoever finds the directory finds all of it.
    let made = TempDir::new_in(kept).unwrap();
    fs::write(made.path().join("pom.xml"), LIBRARIES).unwrap();
    let copied = Command::new("mvn")
        .args(["-B", "-q", COPY, "-DoutputDirectory=libraries", "-DincludeScope=runtime"])
        .current_dir(made.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    if !copied.status.success() {
        skip(format!("Maven does not get Hadoop: {}", written(&copied)));
        return None;
    }
    match fs::rename(made.path().join("libraries"), &at) {
        // Another test was faster.
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
        renamed => renamed.unwrap(),
    }
    Some(at)
}

fn setting(name: &str, value: &str) -> String {
    format!("-D{name}={value}")
}

/// What all of Hadoop's programs are told.
fn settings(place: &Path, port: u16, pages: u16) -> Vec<String> {
    let address = format!("127.0.0.1:{port}");
    let any = "127.0.0.1:0";
    vec![
        setting("fs.defaultFS", &format!("hdfs://{address}")),
        setting("hadoop.tmp.dir", &place.join("temporary").display().to_string()),
        setting("dfs.namenode.name.dir", &format!("file://{}", place.join("names").display())),
        setting("dfs.namenode.rpc-address", &address),
        setting("dfs.namenode.http-address", &format!("127.0.0.1:{pages}")),
        setting("dfs.namenode.safemode.extension", "0"),
        setting("dfs.datanode.address", any),
        setting("dfs.datanode.http.address", any),
        setting("dfs.datanode.ipc.address", any),
        setting("dfs.replication", "2"),
        // The smallest that is allowed.
        setting("dfs.blocksize", "1048576"),
        // With two DataNodes there is none to take the place of one that fails.
        setting("dfs.client.block.write.replace-datanode-on-failure.enable", "false"),
        // A copy that could not be made, because its DataNode was dead, is tried again after so many seconds.
        setting("dfs.namenode.reconstruction.pending.timeout-sec", "10"),
        // Without it each partition file of a sort asks for ten copies.
        setting("mapreduce.client.submit.file.replication", "2"),
        setting("mapreduce.terasort.final.sync", "true"),
    ]
}

/// A program of Hadoop's; it does not know of the modules of Java 9 and later.
fn java(place: &Path, libraries: &Path, class: &str, settings: &[String]) -> Command {
    let mut command = Command::new("java");
    command.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
    for package in ["java.lang", "java.nio"] {
        command.arg(format!("--add-opens=java.base/{package}=ALL-UNNAMED"));
    }
    let own = place.join("class-path");
    let class_path = format!("{}:{}/*", own.display(), libraries.display());
    command.args(["-cp", &class_path, class]).args(settings);
    command.current_dir(place).stdin(Stdio::null());
    command
}

/// Starts a program with its output in a file.
fn logged(command: &mut Command, place: &Path, name: &str) -> Child {
    let log =
        File::options().create(true).append(true).open(place.join(format!("{name}.log"))).unwrap();
    command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
}
