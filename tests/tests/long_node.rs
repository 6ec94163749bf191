//! The overlays on a real node: a kubelet runs the image that is built here, and what was acknowledged outlives its pods.
//! One test in this file: its thread gets a network of its own.

#![allow(clippy::indexing_slicing, reason = "JSON answers null where there is nothing")]

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use highwater_telemetry::names::attribute;
use serde_json::{Value, json};
use system_tests::history::{History, Outcome};
use system_tests::kube::{Node, Said, images};
use system_tests::traffic::Traffic;
use system_tests::{parts, programs, wait};
use tonic::transport::{Channel, Endpoint};

/// As the manifests name it, written in full.
const IMAGE: &str = "docker.io/library/highwater:0.1.0";
const TOPIC: &str = "payments";
/// Pods are pulled up in seconds; this bounds a busy machine.
const SETTLES_WITHIN: Duration = Duration::from_secs(180);
/// How many records are acknowledged before, between and after what happens to the pods.
const ACKNOWLEDGED: usize = 200;
/// A producer that is refused tries again after this.
const PAUSE: Duration = Duration::from_millis(20);

/// What a replica that comes back has to catch up on, in records of 64 KiB, and how fast it may.
const BACKLOG: usize = 32;
const RATE: &str = "100kB/s";

/// The cluster, and what a person does with it.
struct Deployed(Node);

impl Deployed {
    async fn kubectl(&self, arguments: &[&str]) -> Said {
        self.0.kubectl().run(["--namespace=highwater"].iter().chain(arguments)).await
    }

    async fn apply(&self, overlay: &str) {
        let overlay = programs::repository().join("deploy/kubernetes/overlays").join(overlay);
        self.0.kubectl().apply(&overlay, &[]).await.quietly();
    }

    /// Waits until a pod that may not be there yet is ready.
    async fn ready(&self, pod: &str) {
        let pod = format!("pod/{pod}");
        let wait = ["wait", "--for=condition=Ready", "--timeout=1s", &pod];
        wait::until(&format!("{pod} to be ready"), SETTLES_WITHIN, async || {
            self.kubectl(&wait).await.done.then_some(())
        })
        .await;
    }

    /// The command line tool, in the leader's pod.
    async fn highwater(&self, arguments: &[&str]) -> Said {
        let exec = ["exec", "leader-svc-1", "--", "highwater"];
        self.kubectl(&exec.into_iter().chain(arguments.iter().copied()).collect::<Vec<_>>()).await
    }

    /// Creates a topic of one partition, of which two replicas must hold what is acknowledged.
    async fn create(&self, topic: &str, replicas: &str) {
        let replicas = format!("--replicas={replicas}");
        let said =
            self.highwater(&["topics", "create", topic, &replicas, "--property=min.insync.replicas=2"]).await;
        assert!(said.done, "{said:?}");
    }

    /// The deployments of an overlay, each with its image.
    async fn images(&self, overlay: &str) -> Vec<(String, String)> {
        let overlay = programs::repository().join("deploy/kubernetes/overlays").join(overlay);
        let lines = "--output=jsonpath={range .items[?(@.kind==\"Deployment\")]}\
                     {.metadata.name} {.spec.template.spec.containers[0].image}{\"\\n\"}{end}";
        let said = self.0.kubectl().apply(&overlay, &["--dry-run=server", lines]).await;
        let pairs = said.quietly().lines().filter_map(|line| line.split_once(' '));
        pairs.map(|(name, image)| (name.to_owned(), image.to_owned())).collect()
    }

    /// What Jaeger's API answers, through the API server.
    async fn jaeger(&self, query: &str) -> Value {
        let path = format!("/api/v1/namespaces/highwater/services/jaeger:http/proxy/api/{query}");
        self.0.kubectl().run(["get", "--raw", &path]).await.json()
    }

    /// Waits until every pod of an object is of its newest revision, and ready.
    async fn settles(&self, object: &str) {
        let bound = format!("--timeout={}s", SETTLES_WITHIN.as_secs());
        let said = self.kubectl(&["rollout", "status", object, &bound]).await;
        assert!(said.done, "{said:?}");
    }

    async fn field(&self, object: &str, path: &str) -> String {
        let said = self.kubectl(&["get", object, &format!("--output=jsonpath={{{path}}}")]).await;
        said.quietly().to_owned()
    }

    /// grpcurl on the node, which asks the cluster for names.
    async fn grpcurl(&self, options: &[&str], name: &str, rest: &[&str]) -> String {
        let program = parts::grpcurl().expect("just looked");
        let mut command = self.0.machine().command(program);
        let address = name.replacen(':', ".highwater.svc.cluster.local:", 1);
        let output = command
            .arg("-plaintext")
            .args(options)
            .arg(address)
            .args(rest)
            .output()
            .await
            .expect("it starts");
        assert!(output.status.success(), "{name} {rest:?}: {output:?}");
        String::from_utf8(output.stdout).expect("it prints text")
    }

    async fn call(&self, name: &str, method: &str, request: &Value) -> Value {
        let method = format!("highwater.v1.{method}");
        let answer = self.grpcurl(&["-d", &request.to_string()], name, &[&method]).await;
        serde_json::from_str(&answer).expect("grpcurl prints JSON")
    }
}

fn traffic(address: &str, port: u16) -> Traffic {
    let endpoint = Endpoint::from_shared(format!("http://{address}:{port}")).expect("an address makes a URL");
    let within = Duration::from_secs(5);
    let channel: Channel = endpoint.connect_timeout(within).timeout(within).connect_lazy();
    Traffic::new(channel, TOPIC, 0)
}

/// Producers' load, until it is told to end.
struct Load {
    history: Rc<History>,
    ending: Rc<Cell<bool>>,
    task: tokio::task::JoinHandle<()>,
}

impl Load {
    fn start(mut traffic: Traffic) -> Self {
        let (history, ending) = (Rc::new(History::default()), Rc::new(Cell::new(false)));
        let (noted, end) = (Rc::clone(&history), Rc::clone(&ending));
        let task = tokio::task::spawn_local(async move {
            for number in 0_u64.. {
                if end.get() {
                    break;
                }
                let outcome = traffic.produce(&noted, &format!("record-{number}")).await;
                if !matches!(outcome, Outcome::Acknowledged(_)) {
                    tokio::time::sleep(PAUSE).await;
                }
            }
        });
        Self { history, ending, task }
    }

    /// Waits until some more are acknowledged than now.
    async fn goes_on(&self) {
        let enough = self.history.acknowledged() + ACKNOWLEDGED;
        wait::until("more acknowledged records", SETTLES_WITHIN, async || {
            (self.history.acknowledged() >= enough).then_some(())
        })
        .await;
    }

    async fn end(self) -> Rc<History> {
        self.ending.set(true);
        self.task.await.expect("the load ends");
        self.history
    }
}

#[tokio::test]
async fn the_overlays_run_on_a_real_node_and_lose_nothing_when_pods_are_deleted() {
    if parts::grpcurl().is_none() {
        return;
    }
    let Some(node) = Node::start().await else { return };
    node.import(&images::highwater(node.place(), IMAGE)).await;
    let deployed = Deployed(node);
    let namespace = programs::repository().join("deploy/kubernetes/namespace.yaml");
    deployed.0.kubectl().run(["apply".as_ref(), "-f".as_ref(), namespace.as_os_str()]).await.quietly();
    deployed.apply("pair").await;
    a_record_as_the_readme_says(&deployed).await;
    for pod in ["leader-svc-1", "follower-agent-2", "follower-agent-3"] {
        deployed.ready(pod).await;
    }
    serves_by_every_name(&deployed).await;
    tokio::task::LocalSet::new().run_until(loses_nothing(&deployed)).await;
    throttles(&deployed).await;
    traces(&deployed).await;
}

/// deploy/README.md's own lines, from those that need pods to the Fetch, right after the overlay was applied.
async fn a_record_as_the_readme_says(deployed: &Deployed) {
    let readme = programs::repository().join("deploy/README.md");
    let readme = std::fs::read_to_string(readme).expect("it is there");
    let (_, after) = readme.split_once("overlays/pair-tracing\n    ").expect("the overlay is applied");
    let (lines, _) =
        after.split_once("    kubectl -n highwater port-forward service/jaeger").expect("Jaeger is last");
    assert!(
        lines.contains("topics create") && lines.contains("produce") && lines.contains("Fetch"),
        "{lines}"
    );
    let script = format!("trap 'kill $(jobs -p) || true' EXIT\n{lines}");
    let grpcurl = parts::grpcurl().expect("just looked");
    let said = deployed.0.kubectl().shell(&script, &[grpcurl.parent().expect("it lies in a folder")]).await;
    assert!(said.done, "{said:?}");
    assert!(said.out.contains("\"nextOffset\"") || said.out.contains("\"records\""), "{said:?}");
}

/// Lists, produces and fetches, through the service and through the pods' own names.
async fn serves_by_every_name(deployed: &Deployed) {
    let leader = "leader-svc-1.leader-svc:9400";
    let agents = ["follower-agent-2.follower-agent:9401", "follower-agent-3.follower-agent:9401"];
    for name in ["highwater:9400", leader].into_iter().chain(agents) {
        let services = deployed.grpcurl(&[], name, &["list"]).await;
        assert!(services.lines().any(|line| line == "highwater.v1.LogService"), "{name}: {services}");
    }
    let topic = "by-hand";
    deployed.create(topic, "1,2,3").await;
    let record = json!({"acks": "ACKS_ALL", "partitions": [
        {"topic": topic, "partition": 0, "plain_records": [{"value_text": "by hand"}]}]});
    wait::until("an acknowledged record", SETTLES_WITHIN, async || {
        let answer = deployed.call("highwater:9400", "LogService/Produce", &record).await;
        answer["partitions"][0]["error"].is_null().then_some(())
    })
    .await;
    let fetch = json!({"partitions": [{"topic": topic, "partition": 0, "fetch_offset": 0}]});
    for name in ["highwater:9400", leader].into_iter().chain(agents) {
        wait::until(&format!("the record from {name}"), SETTLES_WITHIN, async || {
            let answer = deployed.call(name, "LogService/Fetch", &fetch).await;
            answer["partitions"][0]["records"].is_string().then_some(())
        })
        .await;
    }
}

/// Deletes pods while records are produced with `acks=all`: in order, and with no time to end.
async fn loses_nothing(deployed: &Deployed) {
    deployed.create(TOPIC, "1,2,3").await;
    let service = deployed.field("service/highwater", ".spec.clusterIP").await;
    let load = Load::start(traffic(&service, 9400));
    load.goes_on().await;
    let at_once = ["--grace-period=0", "--force"].as_slice();
    for (pod, how) in
        [("leader-svc-1", &[] as &[&str]), ("follower-agent-2", at_once), ("leader-svc-1", at_once)]
    {
        let said = deployed.kubectl(&[&["delete", "pod", pod], how].concat()).await;
        assert!(said.done, "{said:?}");
        deployed.ready(pod).await;
        load.goes_on().await;
    }
    let history = load.end().await;
    let end = traffic(&service, 9400).read_all(&history).await;
    for pod in ["pod/follower-agent-2", "pod/follower-agent-3"] {
        let mut replica = traffic(&deployed.field(pod, ".status.podIP").await, 9401);
        wait::until(&format!("{pod} to have everything"), SETTLES_WITHIN, async || {
            (replica.read_all(&history).await == end).then_some(())
        })
        .await;
    }
    history.assert_holds();
}

/// A replica that comes back with much to catch up on is held to the rate that was set, and `lag` says why.
async fn throttles(deployed: &Deployed) {
    let agents = "statefulset/follower-agent";
    assert!(deployed.kubectl(&["scale", agents, "--replicas=1"]).await.done);
    let gone = ["wait", "--for=delete", "pod/follower-agent-3", "--timeout=60s"];
    assert!(deployed.kubectl(&gone).await.done);
    deployed.create("bulk", "1,2,3").await;
    let record = json!({ "value_text": "x".repeat(64 << 10) });
    let partition = json!({"topic": "bulk", "partition": 0, "plain_records": [record]});
    let request = json!({"acks": "ACKS_LEADER", "partitions": [partition]});
    for _ in 0..BACKLOG {
        wait::until("an acknowledged record", SETTLES_WITHIN, async || {
            let answer = deployed.call("highwater:9400", "LogService/Produce", &request).await;
            answer["partitions"][0]["error"].is_null().then_some(())
        })
        .await;
    }
    let said = deployed.highwater(&["throttle", "set", "--leader-rate", RATE]).await;
    assert!(said.done, "{said:?}");
    assert!(deployed.kubectl(&["scale", agents, "--replicas=2"]).await.done);
    wait::until("lag to say that a replica is throttled", SETTLES_WITHIN, async || {
        let said = deployed.highwater(&["lag", "--output=json"]).await;
        said.out.lines().any(|row| row.contains("\"bulk\"") && row.contains("\"throttled\"")).then_some(())
    })
    .await;
    let said = deployed.highwater(&["throttle", "clear"]).await;
    assert!(said.done, "{said:?}");
}

/// The trace of a record, made by every program, arrives in Jaeger's pod through the collector's.
async fn traces(deployed: &Deployed) {
    for (name, image) in deployed.images("pair-tracing").await {
        let program = match name.as_str() {
            "otel-collector" => parts::find("otelcol").map(|part| part.join("otelcol")),
            "jaeger" => parts::find("jaeger").map(|part| part.join("jaeger")),
            "prometheus" => parts::find("prometheus").map(|part| part.join("usr/bin/prometheus")),
            other => panic!("no image for {other}"),
        };
        let Some(program) = program else { return };
        let archive = images::of_program(deployed.0.place(), &program, &format!("docker.io/{image}"));
        deployed.0.import(&archive).await;
    }
    deployed.apply("pair-tracing").await;
    let deployments = ["otel-collector", "jaeger", "prometheus"].map(|name| format!("deployment/{name}"));
    for object in ["statefulset/leader-svc", "statefulset/follower-agent"]
        .into_iter()
        .map(str::to_owned)
        .chain(deployments)
    {
        deployed.settles(&object).await;
    }
    deployed.create("traced", "1,2,3").await;
    let partition = json!({"topic": "traced", "partition": 0, "plain_records": [{"value_text": "a record"}]});
    let request = json!({"acks": "ACKS_ALL", "partitions": [partition]});
    wait::until("a trace with both followers", SETTLES_WITHIN, async || {
        deployed.call("highwater:9400", "LogService/Produce", &request).await;
        let traces = deployed.jaeger("traces?service=follower-agent&operation=replicate%20traced").await;
        traces["data"].as_array().into_iter().flatten().find_map(|trace| {
            let followers = followers(trace, "replicate traced");
            let services = trace["processes"].as_object().into_iter().flatten();
            let led = services.into_iter().any(|(_, process)| process["serviceName"] == "leader-svc");
            (led && followers == ["2", "3"]).then_some(())
        })
    })
    .await;
}

/// The nodes that made a span of this name, in order.
fn followers(trace: &Value, operation: &str) -> Vec<String> {
    let spans =
        trace["spans"].as_array().into_iter().flatten().filter(|span| span["operationName"] == operation);
    let tags = spans.flat_map(|span| span["tags"].as_array().into_iter().flatten());
    let ids = tags.filter(|tag| tag["key"] == attribute::FOLLOWER_ID);
    let ids = ids.map(|tag| tag["value"].to_string().trim_matches('"').to_owned());
    ids.collect::<BTreeSet<String>>().into_iter().collect()
}
