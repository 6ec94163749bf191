//! The schemas of an API server as files for kubeconform: what this very version of Kubernetes knows, and nothing else.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

/// Where kubeconform finds the schemas that [`write_schemas`] wrote, below their directory.
pub const SCHEMA_LOCATION: &str = "{{.ResourceKind}}{{.KindSuffix}}.json";

const DEFINITION: &str = "#/definitions/";

/// Writes a file for each kind that an API server's `/openapi/v2` describes. An object with a field that its schema does
/// not name is refused.
///
/// # Panics
/// When the description is not one, or the directory cannot be written.
pub fn write_schemas(openapi: &Value, directory: &Path) {
    let mut definitions = openapi["definitions"].as_object().expect("definitions").clone();
    definitions.values_mut().for_each(close);
    for (name, definition) in &definitions {
        for kind in definition["x-kubernetes-group-version-kind"].as_array().into_iter().flatten() {
            let mut needed = BTreeMap::new();
            need(name, &definitions, &mut needed);
            let own: Map<String, Value> =
                needed.into_iter().map(|(name, definition)| (name.to_owned(), definition.clone())).collect();
            let schema = json!({ "$ref": format!("{DEFINITION}{name}"), "definitions": own });
            fs::write(directory.join(file_name(kind)), schema.to_string()).expect("a writable directory");
        }
    }
}

/// As kubeconform asks for it: the kind, the first part of the group, the version.
fn file_name(kind: &Value) -> String {
    let field = |name: &str| kind[name].as_str().expect("text").to_lowercase();
    let group = field("group");
    let group = group.split('.').next().filter(|group| !group.is_empty());
    let group = group.map(|group| format!("-{group}")).unwrap_or_default();
    format!("{}{group}-{}.json", field("kind"), field("version"))
}

/// Kubernetes' own description leaves objects open and calls numbers that may be text by a format of its own.
fn close(definition: &mut Value) {
    let Some(fields) = definition.as_object_mut() else { return };
    if fields.contains_key("properties") {
        fields.entry("additionalProperties").or_insert(json!(false));
    }
    if fields.get("format").is_some_and(|format| format == "int-or-string") {
        fields.remove("format");
        fields.insert("type".to_owned(), json!(["integer", "string"]));
    }
}

/// Adds a definition and those that it refers to.
fn need<'a>(name: &'a str, definitions: &'a Map<String, Value>, needed: &mut BTreeMap<&'a str, &'a Value>) {
    let definition = definitions.get(name).expect("what is referred to is defined");
    if needed.insert(name, definition).is_some() {
        return;
    }
    let mut open = vec![definition];
    while let Some(value) = open.pop() {
        match value {
            Value::Object(fields) => {
                if let Some(name) = fields.get("$ref").and_then(Value::as_str) {
                    need(name.strip_prefix(DEFINITION).expect("a definition"), definitions, needed);
                }
                open.extend(fields.values());
            }
            Value::Array(values) => open.extend(values),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_gets_a_closed_schema_with_what_it_refers_to() {
        let openapi = json!({ "definitions": {
            "a.Pod": {
                "properties": { "spec": { "$ref": "#/definitions/a.Spec" } },
                "x-kubernetes-group-version-kind": [{ "group": "apps.k8s.io", "version": "v1", "kind": "Pod" }],
            },
            "a.Spec": { "properties": { "self": { "$ref": "#/definitions/a.Spec" } } },
            "a.Other": { "format": "int-or-string", "type": "string" },
        }});
        let place = tempfile::tempdir().expect("a temporary directory");
        write_schemas(&openapi, place.path());
        let text = fs::read_to_string(place.path().join("pod-apps-v1.json")).expect("the file is there");
        let schema: Value = serde_json::from_str(&text).expect("it is JSON");
        assert_eq!(schema["$ref"], "#/definitions/a.Pod");
        assert_eq!(schema["definitions"].as_object().expect("an object").len(), 2);
        assert_eq!(schema["definitions"]["a.Spec"]["additionalProperties"], false);
    }
}
