//! Who may depend on whom, over what `cargo metadata` tells. The table is the one of ARCHITECTURE.md, "Code map";
//! a new crate, or a new edge, is added here on purpose or not at all.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, PackageId};

/// One crate of ours: which others of ours it may use, and which crates it must never name itself.
struct Rule {
    name: &'static str,
    may_use: &'static [&'static str],
    never: &'static [&'static str],
}

const COMMON: &[&str] = &[
    "highwater-proto",
    "highwater-types",
    "highwater-records",
    "highwater-protocol",
    "highwater-log",
    "highwater-replica",
    "highwater-wire",
    "highwater-coordination",
    "highwater-telemetry",
    "highwater-node",
    "highwater-serving",
    "highwater-client",
];

const RULES: &[Rule] = &[
    Rule { name: "highwater-proto", may_use: &[], never: &["tokio"] },
    Rule { name: "highwater-types", may_use: &[], never: &["tokio", "tonic", "prost"] },
    Rule { name: "highwater-records", may_use: &["highwater-types"], never: &["tokio", "tonic", "prost"] },
    Rule {
        name: "highwater-protocol",
        may_use: &["highwater-types"],
        never: &["tokio", "tonic", "prost", "futures", "rand", "parking_lot"],
    },
    Rule {
        name: "highwater-log",
        may_use: &["highwater-types", "highwater-records"],
        never: &["tokio", "tonic", "prost"],
    },
    Rule {
        name: "highwater-replica",
        may_use: &["highwater-types", "highwater-records", "highwater-protocol", "highwater-log"],
        never: &["tokio", "tonic", "prost"],
    },
    Rule {
        name: "highwater-wire",
        may_use: &["highwater-types", "highwater-protocol", "highwater-proto"],
        never: &["tokio"],
    },
    Rule { name: "highwater-coordination", may_use: &["highwater-types"], never: &["tonic", "prost"] },
    Rule { name: "highwater-telemetry", may_use: &["highwater-types"], never: &[] },
    Rule { name: "highwater-node", may_use: &["highwater-types", "highwater-telemetry"], never: &["prost"] },
    Rule {
        name: "highwater-serving",
        may_use: &[
            "highwater-types",
            "highwater-records",
            "highwater-protocol",
            "highwater-log",
            "highwater-replica",
            "highwater-proto",
            "highwater-wire",
            "highwater-coordination",
            "highwater-telemetry",
            "highwater-node",
        ],
        never: &[],
    },
    Rule {
        name: "highwater-client",
        may_use: &[
            "highwater-types",
            "highwater-records",
            "highwater-proto",
            "highwater-wire",
            "highwater-coordination",
        ],
        never: &[],
    },
    Rule { name: "leader-svc", may_use: COMMON, never: &[] },
    Rule { name: "follower-agent", may_use: COMMON, never: &[] },
    Rule {
        name: "highwater-cli",
        may_use: &[
            "highwater-client",
            "highwater-types",
            "highwater-records",
            "highwater-log",
            "highwater-telemetry",
            "highwater-proto",
        ],
        never: &[],
    },
];

/// The test crate may use everything; nobody may use it.
const TESTS: &str = "system-tests";

/// Crates that must build, with everything below them, without a runtime and without RPC.
const PURE: &[&str] =
    &["highwater-types", "highwater-records", "highwater-protocol", "highwater-log", "highwater-replica"];
const IMPURE: &[&str] = &["tokio", "tonic", "prost", "hyper", "h2"];

/// Two versions of one of these would mean two sets of incompatible types behind the same names.
const ONE_VERSION: &[&str] = &["tonic", "prost", "hyper", "h2", "http", "tower", "bytes"];

/// A direct dependency, by package names.
pub(crate) type Edge = (String, String);

/// Every direct dependency of every crate of the workspace, of any kind.
pub(crate) fn edges(metadata: &Metadata) -> Vec<Edge> {
    metadata
        .workspace_packages()
        .iter()
        .flat_map(|package| {
            package.dependencies.iter().map(|dependency| (package.name.to_string(), dependency.name.clone()))
        })
        .collect()
}

/// The edges that the table forbids.
pub(crate) fn forbidden_edges(edges: &[Edge]) -> Vec<String> {
    let ours: BTreeSet<&str> = RULES.iter().map(|rule| rule.name).chain([TESTS]).collect();
    edges
        .iter()
        .filter(|(from, to)| {
            let Some(rule) = RULES.iter().find(|rule| rule.name == from) else { return to == TESTS };
            if ours.contains(to.as_str()) {
                !rule.may_use.contains(&to.as_str())
            } else {
                rule.never.contains(&to.as_str())
            }
        })
        .map(|(from, to)| format!("{from} must not depend on {to}"))
        .collect()
}

/// Workspace crates that the table does not know.
pub(crate) fn unlisted_crates(metadata: &Metadata) -> Vec<String> {
    metadata
        .workspace_packages()
        .iter()
        .filter(|package| {
            package.name.as_str() != TESTS && !RULES.iter().any(|rule| rule.name == package.name.as_str())
        })
        .map(|package| format!("{} is not in the dependency table", package.name))
        .collect()
}

/// Runtime and RPC crates somewhere in the dependency tree of a pure crate. Dev-dependencies do not count.
pub(crate) fn impure_trees(metadata: &Metadata) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in metadata.workspace_packages() {
        if PURE.contains(&package.name.as_str()) {
            let tree = tree_of(metadata, &package.id);
            assert!(tree.contains("thiserror"), "the walk of {}'s tree found only {tree:?}", package.name);
            complaints.extend(
                IMPURE.iter().filter(|name| tree.contains(**name)).map(|name| {
                    format!("{} must not be built with {name}, not even indirectly", package.name)
                }),
            );
        }
    }
    complaints
}

/// The names of all packages that `start` is built with.
fn tree_of(metadata: &Metadata, start: &PackageId) -> BTreeSet<String> {
    let resolve = metadata.resolve.as_ref().expect("cargo metadata resolves dependencies");
    let nodes: BTreeMap<&PackageId, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let mut names = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut queue = vec![start];
    while let Some(id) = queue.pop() {
        if !seen.insert(id) {
            continue;
        }
        names.insert(metadata[id].name.to_string());
        let node = nodes.get(id).expect("cargo metadata resolves every package");
        let built_with = node
            .deps
            .iter()
            .filter(|dep| dep.dep_kinds.iter().any(|kind| kind.kind != DependencyKind::Development));
        queue.extend(built_with.map(|dep| &dep.pkg));
    }
    names
}

/// Crates of [`ONE_VERSION`] that the lock file holds more or less often than once.
pub(crate) fn several_versions(metadata: &Metadata) -> Vec<String> {
    ONE_VERSION
        .iter()
        .filter_map(|name| {
            let versions: Vec<String> = metadata
                .packages
                .iter()
                .filter(|package| package.name.as_str() == *name)
                .map(|package| package.version.to_string())
                .collect();
            (versions.len() != 1).then(|| format!("{name} must be there in one version, found {versions:?}"))
        })
        .collect()
}

fn edge(from: &str, to: &str) -> Edge {
    (from.to_owned(), to.to_owned())
}

#[test]
fn a_planted_edge_between_our_crates_is_reported() {
    let edges = [
        edge("highwater-protocol", "highwater-types"),
        edge("highwater-types", "highwater-proto"),
        edge("highwater-serving", "highwater-client"),
        edge("leader-svc", "follower-agent"),
        edge("highwater-node", "system-tests"),
    ];
    assert_eq!(
        forbidden_edges(&edges),
        [
            "highwater-types must not depend on highwater-proto",
            "highwater-serving must not depend on highwater-client",
            "leader-svc must not depend on follower-agent",
            "highwater-node must not depend on system-tests",
        ]
    );
}

#[test]
fn a_planted_edge_to_a_banned_crate_is_reported() {
    assert_eq!(
        forbidden_edges(&[edge("highwater-protocol", "tokio"), edge("highwater-client", "tokio")]),
        ["highwater-protocol must not depend on tokio"]
    );
}

#[test]
fn the_tree_of_a_crate_holds_what_it_is_built_with_and_no_test_tools() {
    let metadata = super::metadata();
    let package = |name: &str| {
        metadata.packages.iter().find(|p| p.name.as_str() == name).expect("a workspace crate").id.clone()
    };
    let wire = tree_of(&metadata, &package("highwater-wire"));
    assert!(wire.contains("tonic") && wire.contains("h2"), "{wire:?}");
    let types = tree_of(&metadata, &package("highwater-types"));
    assert!(!types.contains("proptest"), "a dev-dependency is no part of the tree: {types:?}");
}
