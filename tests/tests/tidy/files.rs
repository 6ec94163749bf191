//! What every file of the repository must carry and must never hold.

use std::path::{Path, PathBuf};

/// Hard limit on the length of a source file; 400 is the aim.
const LINES_MAX: usize = 800;

/// Text that ties the repository to one machine or to one place to fetch from. Written in halves, so that this file
/// does not trip over itself.
const NEVER: &[&str] = &[
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("crates", ".io"),
    concat!("proxy.", "golang.org"),
    concat!("sum.", "golang.org"),
    concat!("repo.maven", ".apache.org"),
    concat!("repo1.", "maven.org"),
    concat!("registry.", "npmjs.org"),
    concat!("pypi", ".org"),
    concat!("deb.", "debian.org"),
];

/// Words that mark unfinished work; allowed with the number of the issue that finishes it: `TODO(#12)`.
const UNFINISHED: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:")];

/// Constructors of `tonic::Status`. Product code outside `wire` takes a status from `wire::status`, so that codes and
/// details are decided in one place.
const STATUS: &[&str] = &[
    "Status::new(",
    "Status::with_",
    "Status::cancelled(",
    "Status::unknown(",
    "Status::invalid_argument(",
    "Status::deadline_exceeded(",
    "Status::not_found(",
    "Status::already_exists(",
    "Status::permission_denied(",
    "Status::resource_exhausted(",
    "Status::failed_precondition(",
    "Status::aborted(",
    "Status::out_of_range(",
    "Status::unimplemented(",
    "Status::internal(",
    "Status::unavailable(",
    "Status::data_loss(",
    "Status::unauthenticated(",
];

/// Every file of the repository by its path from `root`, without build output and git's own files.
pub(crate) fn of_the_repository(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root.join(&folder)).expect("a folder of the repository can be listed")
        {
            let entry = entry.expect("a folder of the repository can be listed");
            let name = entry.file_name();
            let kind = entry.file_type().expect("an entry has a type");
            if kind.is_dir() && name != ".git" && name != "target" {
                folders.push(folder.join(&name));
            } else if kind.is_file() {
                found.push(folder.join(&name));
            }
        }
    }
    found.sort();
    found
}

/// What is wrong with one file. Cargo.lock is cargo's: it names the registry.
pub(crate) fn complaints(path: &Path, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if path == Path::new("Cargo.lock") {
        return complaints;
    }
    let shown = path.display();
    if path.extension().is_some_and(|extension| extension == "rs") {
        if !text.starts_with("//!") {
            complaints.push(format!("{shown}: does not begin with a //! that says what lives here"));
        }
        let lines = text.lines().count();
        if lines > LINES_MAX {
            complaints.push(format!("{shown}: {lines} lines, at most {LINES_MAX}"));
        }
    }
    if is_product_code(path) && !path.starts_with("common/wire") {
        // Unit tests stand at the end of a file and may build what they like.
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (index, line) in product.lines().enumerate() {
            if STATUS.iter().any(|constructor| holds_apart(line, constructor)) {
                complaints.push(format!("{shown}:{}: builds a gRPC status outside wire", index + 1));
            }
        }
    }
    if path.ends_with("Cargo.toml") && text.contains("[package]") {
        let generated = path == Path::new("proto/Cargo.toml");
        if !generated && !text.contains("[lints]\nworkspace = true") {
            complaints.push(format!("{shown}: does not take over the lints of the workspace"));
        }
    }
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if line.trim_start().starts_with("#[ignore") && !line.contains("process") {
            complaints.push(format!("{shown}:{number}: a test that never runs"));
        }
        for text in NEVER.iter().filter(|text| holds_apart(line, text)) {
            complaints.push(format!("{shown}:{number}: names {text}"));
        }
        for word in UNFINISHED.iter().filter(|word| unfinished(line, word)) {
            complaints.push(format!("{shown}:{number}: {word} without the number of an issue"));
        }
    }
    complaints
}

/// Whether a file is Rust code that ends up in a program, as opposed to a test or a test's tools.
fn is_product_code(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let is_test = name.ends_with("_test.rs") || name.starts_with("test_") || name == "fake.rs";
    name.ends_with(".rs") && !is_test && !path.starts_with("tests")
}

/// Whether `line` holds `text` where it is not the tail of a longer name or path.
fn holds_apart(line: &str, text: &str) -> bool {
    line.match_indices(text).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !(c.is_alphanumeric() || "_.-/}".contains(c)))
    })
}

/// Whether `line` holds `word` without `(#number)` behind it.
fn unfinished(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let after = &line[at + word.len()..];
        !after.strip_prefix("(#").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    })
}

/// The settings of an example configuration file (set, or commented out as `# key = "value"`) for which the document has
/// no row of their own, or one with another default or range. A range stands two lines above its setting.
pub(crate) fn undocumented_settings(path: &Path, example: &str, document: &str) -> Vec<String> {
    let is_key =
        |text: &str| text.contains(|c: char| c.is_ascii_lowercase()) && !text.contains(char::is_whitespace);
    let is_range = |line: &&str| line.split_whitespace().nth(1) == Some("to");
    let lines: Vec<&str> = example.lines().map(|line| line.trim_start_matches("# ")).collect();
    let settings = lines.iter().enumerate().filter_map(|(at, line)| {
        let (key, value) = line.split_once(" = \"")?;
        let range = at.checked_sub(2).and_then(|above| lines.get(above)).copied().filter(is_range);
        is_key(key).then_some((key, value.trim_end_matches('"'), range.unwrap_or_default()))
    });
    settings
        .filter(|(key, default, range)| {
            let row = format!("| `{key}` | ");
            let explains =
                |line: &str| line.starts_with(&row) && line.contains(default) && line.contains(range);
            !document.lines().any(explains)
        })
        .map(|(key, default, range)| {
            let range = if range.is_empty() { String::new() } else { format!(", {range}") };
            format!("{}: no row explains `{key}` with its default '{default}'{range}", path.display())
        })
        .collect()
}

/// The functions and constants that a document names as `` `file.rs` `name` `` and that `source`, given the file's path,
/// does not hold.
pub(crate) fn dangling_names(document: &str, source: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut complaints = Vec::new();
    for line in document.lines() {
        // Unquoted and quoted pieces take turns; a file and its test have one space between them.
        let pieces: Vec<&str> = line.split('`').collect();
        for (at, piece) in pieces.windows(3).enumerate() {
            let &[file, between, name] = piece else { continue };
            if at % 2 == 1 && between == " " && file.ends_with(".rs") {
                let forms = [format!("fn {name}("), format!("fn {name}<"), format!("const {name}:")];
                let found = source(file).is_some_and(|text| forms.iter().any(|form| text.contains(form)));
                if !found {
                    complaints.push(format!("{file} has no {name}"));
                }
            }
        }
    }
    complaints
}

fn of_line(line: &str) -> Vec<String> {
    complaints(Path::new("notes.md"), line)
}

/// Scripts of parts, without their extension, that the test command has in no list of what it wants. `lib` is their library.
pub(crate) fn parts_never_installed(scripts: &[String], run: &str) -> Vec<String> {
    let listed = |part: &str| {
        let lists =
            run.split("parts_wanted").skip(1).filter_map(|list| list.split_once('(')?.1.split_once(')'));
        lists.into_iter().any(|(list, _)| list.split_whitespace().any(|wanted| wanted == part))
    };
    let missing = scripts.iter().filter(|part| *part != "lib" && !listed(part));
    missing.map(|part| format!("tests/run does not want the part {part}")).collect()
}

#[test]
fn a_part_that_the_test_command_does_not_install_is_reported() {
    let scripts = ["etcd", "lib", "clock", "kubelet"].map(str::to_owned);
    let run =
        "parts_wanted=(protoc etcd)\nbash \"${parts_wanted[@]}\" clock\n  parts_wanted+=(kubelet coredns)";
    assert_eq!(parts_never_installed(&scripts, run), ["tests/run does not want the part clock"]);
}

#[test]
fn a_file_without_a_head_or_with_too_many_lines_is_reported() {
    let path = Path::new("common/types/src/x.rs");
    assert_eq!(complaints(path, "//! Positions.\n"), Vec::<String>::new());
    assert_eq!(complaints(path, "use std::fmt;\n").len(), 1);
    assert_eq!(complaints(path, &"//!\n".repeat(LINES_MAX)), Vec::<String>::new());
    assert_eq!(complaints(path, &"//!\n".repeat(LINES_MAX + 1)).len(), 1);
}

#[test]
fn a_crate_without_the_lints_is_reported() {
    let with = "[package]\nname = \"x\"\n\n[lints]\nworkspace = true\n";
    assert_eq!(complaints(Path::new("cli/Cargo.toml"), with), Vec::<String>::new());
    assert_eq!(complaints(Path::new("cli/Cargo.toml"), "[package]\nname = \"x\"\n").len(), 1);
}

#[test]
fn a_status_built_outside_wire_is_reported() {
    let code = "//! x\nfn f() { Err(Status::internal(\"x\")) }\n";
    assert_eq!(complaints(Path::new("leader-svc/src/x.rs"), code).len(), 1);
    assert_eq!(complaints(Path::new("common/wire/src/status.rs"), code), Vec::<String>::new());
    assert_eq!(complaints(Path::new("leader-svc/src/x_test.rs"), code), Vec::<String>::new());
    let tested = "//! x\n#[cfg(test)]\nmod tests { fn f() { Status::internal(\"x\") } }\n";
    assert_eq!(complaints(Path::new("leader-svc/src/x.rs"), tested), Vec::<String>::new());
    let spared = "//! x\nuse tonic::Status;\nfn f(status: &Status) { SerialStatus::new(); }\n";
    assert_eq!(complaints(Path::new("leader-svc/src/x.rs"), spared), Vec::<String>::new());
    assert_eq!(
        complaints(Path::new("leader-svc/src/x.rs"), &code.replace("Status::i", "tonic::Status::i")).len(),
        1
    );
}

#[test]
fn machine_paths_and_registries_are_reported_but_not_names_that_contain_them() {
    for text in NEVER {
        assert_eq!(of_line(&format!("see {text}x")).len(), 1, "{text}");
        assert_eq!(of_line(text).len(), 1, "{text}");
    }
    assert_eq!(of_line(concat!("a path like $cache/wo", "rk/x")), Vec::<String>::new());
}

#[test]
fn a_test_that_never_runs_is_reported_unless_another_starts_it_as_a_process() {
    assert_eq!(of_line("    #[ignore = \"slow\"]").len(), 1);
    assert_eq!(of_line("#[ignore]").len(), 1);
    assert_eq!(of_line("#[ignore = \"started by another test, as a process\"]"), Vec::<String>::new());
}

#[test]
fn unfinished_work_needs_an_issue_number() {
    for word in UNFINISHED {
        assert_eq!(of_line(&format!("// {word} later")).len(), 1);
        assert_eq!(of_line(&format!("// {word}(#12): later")), Vec::<String>::new());
        assert_eq!(of_line(&format!("// {word}(#): later")).len(), 1);
    }
}

#[test]
fn a_setting_without_a_row_or_with_another_default_is_reported() {
    let example =
        "# How long, for example x = \"y\".\n# replica.fetch.wait.max.ms = \"500ms\"\n\nnode.id = \"\"\n";
    let reported = |document: &str| undocumented_settings(Path::new("x.example.toml"), example, document);
    let node = "| `node.id` | required | the id |\n";
    assert_eq!(
        reported(&format!("{node}| `replica.fetch.wait.max.ms` | `500ms` | how long |")),
        Vec::<String>::new()
    );
    let wait = "x.example.toml: no row explains `replica.fetch.wait.max.ms` with its default '500ms'";
    assert_eq!(reported(node), [wait]);
    assert_eq!(reported(&format!("{node}| `replica.fetch.wait.max.ms` | `400ms` | how long |")), [wait]);
    let example = "# How many.\n# 1 to 64\n# --fetchers, FETCHERS\n# fetchers = \"1\"\n";
    let reported = |document: &str| undocumented_settings(Path::new("x.example.toml"), example, document);
    assert_eq!(reported("| `fetchers` | `1` | 1 to 64 | how many |"), Vec::<String>::new());
    let range = "x.example.toml: no row explains `fetchers` with its default '1', 1 to 64";
    assert_eq!(reported("| `fetchers` | `1` | 1 to 32 | how many |"), [range]);
}

#[test]
fn a_name_in_a_document_that_no_file_holds_is_reported() {
    let source = |file: &str| (file == "a.rs").then(|| "const BOUND: u32 = 1;\nfn holds() {}\n".to_owned());
    assert_eq!(dangling_names("| x | `a.rs` `holds`, `a.rs` `BOUND` |", source), Vec::<String>::new());
    assert_eq!(
        dangling_names("| x | `a.rs` `holds`, `b.rs` `holds`; `a.rs` `hold` |", source),
        ["b.rs has no holds", "a.rs has no hold",]
    );
}
