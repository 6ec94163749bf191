//! Kafka's side: a controller and two brokers, with Kafka's defaults. Broker 1 holds the data; in each round broker 2
//! becomes a replica, catches up and is taken out again, so that its virtual machine stays warm.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use system_tests::process::{CommandLine, Process};
use system_tests::{parts, ports, wait};
use tempfile::TempDir;
use tokio::process::Command;

use crate::measure::{Measured, Subject, log_bytes, watch};
use crate::{Data, TOPIC};

const CONTROLLER: i32 = 3;
/// What Kafka's own start script gives a broker.
const JVM: &[&str] = &[
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
];
const LOGGING: &str = "status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
";

/// A cluster whose broker 1 is filled.
pub(crate) struct Kafka {
    // Processes are declared, and so dropped, before the directory that they use.
    brokers: [Process; 2],
    _controller: Process,
    place: TempDir,
    jars: PathBuf,
    bootstrap: String,
    target: u64,
}

impl Kafka {
    /// Starts the cluster and fills broker 1; `None` when Kafka is left out.
    pub(crate) async fn start(data: &Data) -> Option<Self> {
        let jars = parts::find("kafka")?.join("libs/*");
        let place = tempfile::Builder::new().prefix("highwater-bench-kafka-").tempdir().expect("a directory");
        let cluster_id = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 16]>());
        let voter = format!("{CONTROLLER}@{}", ports::loopback());
        fs::write(place.path().join("log4j2.properties"), LOGGING).expect("the directory is ours");
        let bootstrap = ports::loopback().to_string();
        let start = async |node: i32, listen: &str| {
            configure(place.path(), node, &voter, listen);
            start_node(&jars, place.path(), &cluster_id, node).await
        };
        let controller = start(CONTROLLER, "").await;
        let brokers = [start(1, &bootstrap).await, start(2, &ports::loopback().to_string()).await];
        let mut kafka = Self { brokers, _controller: controller, place, jars, bootstrap, target: 0 };
        for broker in &mut kafka.brokers {
            broker.prints("Kafka Server started", 6 * wait::SOON).await;
        }
        kafka.fill(data).await;
        kafka.target = log_bytes(&kafka.partition(1));
        Some(kafka)
    }

    /// One catch-up of broker 2.
    pub(crate) async fn round(&self) -> Measured {
        let directory = self.partition(2);
        let [leader, follower] = self.brokers.each_ref().map(Process::id);
        let subject = Subject { leader, follower, directory: &directory, target: self.target };
        let (measured, ()) = tokio::join!(watch(&subject, async || true), self.assign("1,2"));
        self.assign("1").await;
        let is_gone = async || {
            let entries = fs::read_dir(self.data_dir(2)).expect("the broker's directory").flatten();
            let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            names.all(|name| !name.starts_with(TOPIC)).then_some(())
        };
        wait::until("the replica's removal", 6 * wait::SOON, is_gone).await;
        measured
    }

    async fn fill(&self, data: &Data) {
        self.tool("TopicCommand", &["--create", "--topic", TOPIC, "--replica-assignment", "1"]).await;
        let records = data.records.to_string();
        let record_bytes = data.record_bytes.to_string();
        let batch = format!("batch.size={}", data.batch_bytes);
        let servers = format!("bootstrap.servers={}", self.bootstrap);
        let mut command = self.java("ProducerPerformance");
        command.args(["--topic", TOPIC, "--throughput", "-1", "--num-records", &records]).args([
            "--record-size",
            &record_bytes,
            "--producer-props",
            &servers,
            "acks=1",
            &batch,
        ]);
        run(command).await;
    }

    /// Changes who has a replica. An earlier change may still be running: then it is tried again.
    async fn assign(&self, replicas: &str) {
        let file = self.place.path().join("assignment.json");
        let json = format!(
            r#"{{"version":1,"partitions":[{{"topic":"{TOPIC}","partition":0,"replicas":[{replicas}]}}]}}"#
        );
        fs::write(&file, json).expect("the directory is ours");
        let file = file.to_str().expect("an ASCII path");
        for _ in 0..20 {
            let said = self
                .tool(
                    "reassign.ReassignPartitionsCommand",
                    &["--execute", "--additional", "--reassignment-json-file", file],
                )
                .await;
            if said.contains("Successfully started") {
                return;
            }
        }
        panic!("Kafka does not take the assignment {replicas}");
    }

    async fn tool(&self, name: &str, arguments: &[&str]) -> String {
        let mut command = self.java(name);
        command.args(["--bootstrap-server", &self.bootstrap]).args(arguments);
        run(command).await
    }

    /// One of Kafka's tools. It gives way to the brokers, whose time is measured.
    fn java(&self, tool: &str) -> Command {
        let mut command = Command::new("nice");
        command
            .args(["-n", "19", "java"])
            .args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"])
            .arg(&self.jars)
            .arg(format!("org.apache.kafka.tools.{tool}"));
        command
    }

    fn partition(&self, node: i32) -> PathBuf {
        self.data_dir(node).join(format!("{TOPIC}-0"))
    }

    fn data_dir(&self, node: i32) -> PathBuf {
        data_dir(self.place.path(), node)
    }
}

fn data_dir(place: &Path, node: i32) -> PathBuf {
    place.join(format!("kafka-{node}"))
}

fn properties(place: &Path, node: i32) -> PathBuf {
    place.join(format!("node-{node}.properties"))
}

/// Defaults, apart from what a cluster on one machine needs and how soon a removed replica's files go.
fn configure(place: &Path, node: i32, voter: &str, listen: &str) {
    let mut file = fs::File::create(properties(place, node)).expect("the directory is ours");
    let (_, voter_address) = voter.split_once('@').expect("ID@ADDRESS");
    let (role, listeners) = match node {
        CONTROLLER => ("controller", format!("CONTROLLER://{voter_address}")),
        _ => ("broker", format!("PLAINTEXT://{listen}")),
    };
    let data = data_dir(place, node);
    let text = format!(
        "process.roles={role}\nnode.id={node}\nlisteners={listeners}\nlog.dirs={}\n\
         controller.quorum.voters={voter}\ncontroller.listener.names=CONTROLLER\n\
         offsets.topic.replication.factor=1\nauto.create.topics.enable=false\n\
         log.segment.delete.delay.ms=1000\n",
        data.display()
    );
    file.write_all(text.as_bytes()).expect("the directory is ours");
}

async fn start_node(jars: &Path, place: &Path, cluster_id: &str, node: i32) -> Process {
    let properties = properties(place, node);
    let mut format = Command::new("java");
    format.arg("-cp").arg(jars).args(["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c"]);
    format.arg(&properties);
    run(format).await;
    let logging = format!("-Dlog4j2.configurationFile={}", place.join("log4j2.properties").display());
    let line = CommandLine::new("java").args(JVM).args([&logging, "-cp"]).args([jars]);
    let line = line.args(["kafka.Kafka"]).args([&properties]);
    let output = place.join(format!("node-{node}.log"));
    Process::start(&format!("Kafka node {node}"), &line, &output)
}

/// Runs a command to its end and returns what it printed.
async fn run(mut command: Command) -> String {
    let output = command.stdin(Stdio::null()).output().await.expect("java is installed");
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
