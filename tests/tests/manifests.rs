//! The manifests in deploy/kubernetes, held against a real API server, kubeconform, kube-score, and the programs that they
//! start.

#![allow(clippy::indexing_slicing, reason = "JSON answers null where there is nothing")]

#[path = "manifests/pods.rs"]
mod pods;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use highwater_telemetry::names::attribute;
use highwater_types::Program;
use serde_json::Value;
use system_tests::cluster::Plan;
use system_tests::kube::{self, ControlPlane};
use system_tests::{parts, programs};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

fn deploy(path: &str) -> PathBuf {
    programs::repository().join("deploy").join(path)
}

/// An API server with the namespace that the overlays expect.
async fn with_namespace() -> Option<ControlPlane> {
    let control_plane = ControlPlane::start().await?;
    let namespace = deploy("kubernetes/namespace.yaml");
    control_plane.kubectl().run(["apply".as_ref(), "-f".as_ref(), namespace.as_os_str()]).await.quietly();
    Some(control_plane)
}

/// Runs a program with `input` as its standard input.
fn fed(command: &mut Command, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads its input");
    child.wait_with_output().expect("it ends")
}

/// Whatever the API server would warn of (a field unknown or deprecated, a pod that the namespace refuses) fails this too.
#[tokio::test]
async fn a_real_api_server_accepts_every_overlay() {
    let Some(control_plane) = with_namespace().await else { return };
    let kubectl = control_plane.kubectl();
    for overlay in kube::overlays() {
        kubectl.apply(&overlay, &["--dry-run=server"]).await.quietly();
        kubectl.apply(&overlay, &[]).await.quietly();
        kubectl.run(["diff".as_ref(), "-k".as_ref(), overlay.as_os_str()]).await.quietly();
        kubectl.run(["delete".as_ref(), "-k".as_ref(), overlay.as_os_str()]).await.quietly();
    }
}

#[tokio::test]
async fn every_manifest_fits_the_schemas_of_the_api_server() {
    let Some(kubeconform) = parts::find("kubeconform") else { return };
    let Some(control_plane) = ControlPlane::start().await else { return };
    let openapi = control_plane.kubectl().run(["get", "--raw", "/openapi/v2"]).await.json();
    let schemas = control_plane.place().join("schemas");
    fs::create_dir(&schemas).expect("the place is writable");
    kube::write_schemas(&openapi, &schemas);
    for overlay in kube::overlays() {
        let Some(manifests) = kube::render(&overlay) else { return };
        let mut command = Command::new(kubeconform.join("kubeconform"));
        command.args(["-strict", "-summary", "-schema-location"]).arg(schemas.join(kube::SCHEMA_LOCATION));
        let output = fed(&mut command, &manifests);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}: {said}", overlay.display());
        let documents = manifests.split("\n---\n").count();
        assert!(said.contains(&format!("Valid: {documents}, Invalid: 0")), "all of them: {said}");
    }
}

#[test]
fn what_kube_score_calls_critical_is_explained() {
    let Some(kube_score) = parts::find("kube-score") else { return };
    let mut found = BTreeSet::new();
    for overlay in kube::overlays() {
        let Some(manifests) = kube::render(&overlay) else { return };
        let mut command = Command::new(kube_score.join("kube-score"));
        let output = fed(command.args(["score", "--output-format", "json", "-"]), &manifests);
        let objects: Value = serde_json::from_slice(&output.stdout).expect("kube-score prints JSON");
        found.extend(critical(&objects));
    }
    let explained = fs::read_to_string(deploy("kubernetes/kube-score.md")).expect("it is text");
    let rows = explained.lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let check = cells[0].strip_prefix('`')?.strip_suffix('`')?;
        assert!(cells.len() == 3 && cells[2].len() > 50, "a reason: {line}");
        Some((check.to_owned(), cells[1].to_owned()))
    });
    assert_eq!(found, rows.collect());
}

/// The findings of the gravest kind, as check and summary.
fn critical(objects: &Value) -> Vec<(String, String)> {
    const CRITICAL: u64 = 1;
    let checks = objects.as_array().into_iter().flatten().flat_map(|object| {
        assert!(!object["checks"].as_array().expect("checks").is_empty(), "{object}");
        object["checks"].as_array().into_iter().flatten()
    });
    let critical = checks.filter(|check| check["grade"] == CRITICAL && check["skipped"] == false);
    critical
        .flat_map(|check| {
            let id = text(&check["check"]["id"]);
            let comments = check["comments"].as_array().into_iter().flatten();
            comments.map(move |comment| (id.clone(), text(&comment["summary"])))
        })
        .collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

/// The containers that an overlay amounts to, for an API server.
async fn containers(control_plane: &ControlPlane, overlay: &Path) -> Vec<pods::Container> {
    let objects = control_plane.kubectl().apply(overlay, &["--dry-run=server", "--output=json"]).await.json();
    let containers = pods::containers(&objects);
    assert!(containers.len() >= 2, "a leader-svc and a follower-agent: {containers:?}");
    containers
}

#[tokio::test]
async fn every_program_accepts_the_settings_that_its_pod_gives_it() {
    let Some(control_plane) = with_namespace().await else { return };
    for overlay in kube::overlays() {
        for container in containers(&control_plane, &overlay).await {
            let (program, arguments) = container.command.split_first().expect("a command");
            let arguments = arguments.iter().map(|argument| match container.files.get(argument) {
                Some(content) => {
                    let file = control_plane.place().join("settings.toml");
                    fs::write(&file, content).expect("the place is writable");
                    file.into_os_string()
                }
                None => argument.into(),
            });
            let mut command = programs::command(program);
            command.args(arguments).arg("--check-config").envs(&container.environment);
            let output = command.output().expect("it starts");
            assert!(output.status.success(), "{}: {output:?}", overlay.display());
            assert!(!container.files.is_empty() && container.environment.contains_key("HIGHWATER_NODE_ID"));
        }
    }
}

#[tokio::test]
async fn every_probe_asks_for_a_name_that_serves() {
    let Some(control_plane) = with_namespace().await else { return };
    let cluster = Plan::new().node(1).start().await;
    for overlay in kube::overlays() {
        for container in containers(&control_plane, &overlay).await {
            let program = match container.command[0].as_str() {
                "leader-svc" => Program::LeaderSvc,
                other => {
                    assert_eq!(other, "follower-agent");
                    Program::FollowerAgent
                }
            };
            let mut health = HealthClient::new(cluster.server((1, program)).channel());
            for service in container.probed {
                let request = HealthCheckRequest { service: service.clone() };
                let answer = health.check(request).await.expect("health knows the name").into_inner();
                assert_eq!(answer.status(), ServingStatus::Serving, "{program}: {service}");
            }
        }
    }
}

/// Those with few values; with an offset or a lag each span would be a series of its own.
#[test]
fn the_collectors_dimensions_are_attributes_of_the_lag_span() {
    let configuration = fs::read_to_string(deploy("otel-collector/collector.yaml")).expect("it is text");
    let (_, dimensions) =
        configuration.split_once("    dimensions:\n").expect("span metrics have dimensions");
    let names: Vec<&str> = dimensions.lines().map_while(|line| line.strip_prefix("      - name: ")).collect();
    assert_eq!(names, [attribute::PARTITION, attribute::FOLLOWER_ID, attribute::LAG_CAUSE]);
}

#[test]
fn the_collector_accepts_its_configuration() {
    let Some(collector) = parts::find("otelcol") else { return };
    let mut command = Command::new(collector.join("otelcol"));
    let output = command.args(["validate", "--config"]).arg(deploy("otel-collector/collector.yaml")).output();
    let output = output.expect("the collector starts");
    assert!(output.status.success(), "{output:?}");
}
