//! Rules of the repository that no compiler checks: who may depend on whom, what each file must carry, what must never
//! be written into one. Each rule is a function from input to complaints, so that the tests beside it can plant a
//! violation and see it reported; the tests here run the rules on the workspace itself.
//!
//! Deliberately absent: function length, `unwrap`, printing and the like, which clippy checks (root Cargo.toml).

#[path = "tidy/dependencies.rs"]
mod dependencies;
#[path = "tidy/files.rs"]
mod files;
#[path = "tidy/supply.rs"]
mod supply;

use std::path::{Path, PathBuf};

use highwater_types::TopicProperties;

/// The root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests crate lies in the workspace").to_owned()
}

/// Fails with every complaint at once, so that one run shows all there is to mend.
fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

/// What cargo knows about the workspace and everything that it builds with.
fn metadata() -> cargo_metadata::Metadata {
    cargo_metadata::MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .other_options(["--locked".to_owned()])
        .exec()
        .expect("cargo metadata answers")
}

#[test]
fn crates_depend_only_on_what_the_table_allows() {
    assert_none(&dependencies::forbidden_edges(&dependencies::edges(&metadata())));
}

#[test]
fn the_table_names_every_crate_of_the_workspace() {
    assert_none(&dependencies::unlisted_crates(&metadata()));
}

#[test]
fn the_pure_crates_build_without_runtime_or_rpc() {
    assert_none(&dependencies::impure_trees(&metadata()));
}

#[test]
fn there_is_one_version_of_each_rpc_crate() {
    assert_none(&dependencies::several_versions(&metadata()));
}

#[test]
fn what_comes_from_others_may_be_used() {
    let metadata = metadata();
    assert_none(&supply::other_licences(&metadata));
    assert_none(&supply::other_sources(&metadata));
}

/// tests/run names integration tests to cargo, which would take every crate's test of that name.
#[test]
fn names_of_integration_tests_are_unique() {
    let mut names: Vec<_> = files::of_the_repository(&root())
        .iter()
        .filter(|path| path.parent().is_some_and(|folder| folder.ends_with("tests")))
        .filter_map(|path| path.file_name().map(std::ffi::OsStr::to_owned))
        .collect();
    names.sort();
    let doubled = names.windows(2).filter(|pair| matches!(pair, [one, other] if one == other));
    let complaints: Vec<String> =
        doubled.flatten().map(|name| format!("{} is there twice", name.display())).collect();
    assert_none(&complaints);
}

#[test]
fn every_file_keeps_the_rules() {
    let root = root();
    let files = files::of_the_repository(&root);
    assert!(files.len() > 50, "the walk found only {} files under {}", files.len(), root.display());
    let complaints: Vec<String> = files
        .iter()
        .filter_map(|path| Some((path, std::fs::read_to_string(root.join(path)).ok()?)))
        .flat_map(|(path, text)| files::complaints(path, &text))
        .collect();
    assert_none(&complaints);
}

const CONFIGURATION: &str = "deploy/configuration.md";

#[test]
fn every_setting_is_documented_with_its_default() {
    let root = root();
    let document = std::fs::read_to_string(root.join(CONFIGURATION)).expect("the document is text");
    let examples: Vec<PathBuf> = files::of_the_repository(&root)
        .into_iter()
        .filter(|path| path.to_string_lossy().ends_with(".example.toml"))
        .collect();
    assert_eq!(examples.len(), 2, "both programs have an example file: {examples:?}");
    let undocumented = examples.iter().flat_map(|path| {
        let text = std::fs::read_to_string(root.join(path)).expect("the example file is text");
        files::undocumented_settings(path, &text, &document)
    });
    assert_none(&undocumented.collect::<Vec<String>>());
}

#[test]
fn every_property_of_a_topic_is_documented() {
    let document = std::fs::read_to_string(root().join(CONFIGURATION)).expect("the document is text");
    let missing = TopicProperties::KEYS.iter().filter(|(key, _)| !document.contains(&format!("| `{key}` |")));
    assert_none(
        &missing.map(|(key, _)| format!("{CONFIGURATION} has no row for {key}")).collect::<Vec<String>>(),
    );
}

#[test]
fn every_name_in_the_documents_is_there() {
    let root = root();
    let source = |file: &str| std::fs::read_to_string(root.join(file)).ok();
    for document in ["tests/README.md", "ARCHITECTURE.md"] {
        assert_none(&files::dangling_names(&source(document).expect("the document is text"), source));
    }
}

#[test]
fn what_the_image_is_built_from_and_nothing_else_reaches_its_build() {
    let read = |file: &str| std::fs::read_to_string(root().join(file)).expect("the file is text");
    let (recipe, ignored) = (read("deploy/image/Containerfile"), read(".containerignore"));
    let copies =
        recipe.lines().filter_map(|line| line.strip_prefix("COPY ")).filter(|of| !of.starts_with("--from"));
    let mut copied: Vec<&str> = copies
        .flat_map(|of| {
            let words: Vec<&str> = of.split(' ').collect();
            words.split_last().map(|(_, sources)| sources.to_vec()).unwrap_or_default()
        })
        .collect();
    let mut sent: Vec<&str> = ignored.lines().filter_map(|line| line.strip_prefix('!')).collect();
    copied.sort_unstable();
    sent.sort_unstable();
    assert_eq!(copied, sent);
    assert!(ignored.lines().any(|line| line == "*"), "what is not named is left out");
}

/// An empty cache shows what a machine with an old one hides.
#[test]
fn every_part_is_installed_by_the_test_command() {
    let scripts: Vec<String> = files::of_the_repository(&root().join("tests/parts"))
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "sh"))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    let run = std::fs::read_to_string(root().join("tests/run")).expect("the test command is text");
    assert!(scripts.len() > 10, "{scripts:?}");
    assert_none(&files::parts_never_installed(&scripts, &run));
}
