//! What a pod of a StatefulSet would be given by Kubernetes, worked out from the objects that the API server made of the
//! manifests.

use std::collections::BTreeMap;

use serde_json::Value;

/// One container of a StatefulSet's first pod.
#[derive(Debug)]
pub(crate) struct Container {
    /// The program and its arguments.
    pub(crate) command: Vec<String>,
    /// Its environment, with what only a pod knows filled in.
    pub(crate) environment: BTreeMap<String, String>,
    /// The files that are mounted from ConfigMaps, by path.
    pub(crate) files: BTreeMap<String, String>,
    /// For each probe, the service that it asks the health protocol for.
    pub(crate) probed: Vec<String>,
}

/// Every container of every StatefulSet in a list of objects.
pub(crate) fn containers(objects: &Value) -> Vec<Container> {
    let items = objects["items"].as_array().expect("a list of objects");
    let sets = items.iter().filter(|object| object["kind"] == "StatefulSet");
    let containers = sets.flat_map(|set| {
        let list = set["spec"]["template"]["spec"]["containers"].as_array().expect("containers");
        list.iter().map(move |container| of_set(items, set, container))
    });
    containers.collect()
}

fn of_set(items: &[Value], set: &Value, container: &Value) -> Container {
    let probes =
        ["startupProbe", "readinessProbe", "livenessProbe"].map(|probe| &container[probe]["grpc"]["service"]);
    Container {
        command: list(&container["command"]).iter().chain(list(&container["args"])).map(text).collect(),
        environment: environment(set, container),
        files: files(items, &set["spec"]["template"]["spec"], container),
        probed: probes.map(text).into(),
    }
}

fn environment(set: &Value, container: &Value) -> BTreeMap<String, String> {
    let ordinal = set["spec"]["ordinals"]["start"].to_string();
    let mut environment = BTreeMap::new();
    for variable in list(&container["env"]) {
        let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
            Some("metadata.name") => format!("{}-{ordinal}", text(&set["metadata"]["name"])),
            Some("metadata.namespace") => text(&set["metadata"]["namespace"]),
            Some("metadata.labels['apps.kubernetes.io/pod-index']") => ordinal.clone(),
            Some("spec.nodeName") => "node1".to_owned(),
            Some(path) => text(label(set, path)),
            None => expanded(&text(&variable["value"]), &environment),
        };
        environment.insert(text(&variable["name"]), value);
    }
    environment
}

/// What a path like `metadata.labels['NAME']` leads to in the pods of a StatefulSet.
fn label<'a>(set: &'a Value, path: &str) -> &'a Value {
    let name = path.strip_prefix("metadata.labels['").and_then(|path| path.strip_suffix("']"));
    let name = name.unwrap_or_else(|| panic!("a field that no pod is known to have: {path}"));
    &set["spec"]["template"]["metadata"]["labels"][name]
}

/// `$(NAME)` stands for what an earlier variable holds.
fn expanded(value: &str, environment: &BTreeMap<String, String>) -> String {
    environment
        .iter()
        .fold(value.to_owned(), |value, (name, content)| value.replace(&format!("$({name})"), content))
}

fn files(items: &[Value], pod: &Value, container: &Value) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for mount in list(&container["volumeMounts"]) {
        let volume = list(&pod["volumes"]).iter().find(|volume| volume["name"] == mount["name"]);
        let Some(name) = volume.map(|volume| &volume["configMap"]["name"]) else { continue };
        let map =
            items.iter().find(|object| object["kind"] == "ConfigMap" && object["metadata"]["name"] == *name);
        let map = map.unwrap_or_else(|| panic!("there is no ConfigMap {name}"));
        for (file, content) in map["data"].as_object().expect("data") {
            files.insert(format!("{}/{file}", text(&mount["mountPath"])), text(content));
        }
    }
    files
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}
