//! What comes from others: licences that a product under Apache-2.0 may be built with, and the public registry as the only
//! source. Test tools are held to the same.

use cargo_metadata::{Metadata, Package};

const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Packages whose licence expression the list does not satisfy.
pub(crate) fn other_licences(metadata: &Metadata) -> Vec<String> {
    let bad = |package: &&Package| !package.license.as_deref().is_some_and(allowed);
    let show = |package: &Package| format!("{} has the licence {:?}", package.name, package.license);
    metadata.packages.iter().filter(bad).map(show).collect()
}

/// Packages that are neither ours nor from the registry.
pub(crate) fn other_sources(metadata: &Metadata) -> Vec<String> {
    let ours = |package: &Package| metadata.workspace_members.contains(&package.id);
    let known = |package: &Package| package.source.as_ref().is_some_and(cargo_metadata::Source::is_crates_io);
    let strange = metadata.packages.iter().filter(|package| !ours(package) && !known(package));
    strange.map(|package| format!("{} comes from {:?}", package.name, package.source)).collect()
}

/// Whether a licence expression is satisfied: of each part joined by AND, one alternative is in the list.
fn allowed(expression: &str) -> bool {
    let expression = expression.replace(['(', ')'], "").replace('/', " OR ");
    expression.split(" AND ").all(|part| part.split(" OR ").any(|licence| LICENCES.contains(&licence.trim())))
}

#[test]
fn a_licence_must_have_an_allowed_alternative_in_every_part() {
    for good in ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
        assert!(allowed(good), "{good}");
    }
    for bad in ["GPL-3.0", "MIT AND GPL-3.0", "", "BUSL-1.1"] {
        assert!(!allowed(bad), "{bad}");
    }
}

#[test]
fn a_package_from_elsewhere_is_reported() {
    let mut metadata = super::metadata();
    assert_eq!(other_sources(&metadata), Vec::<String>::new());
    let tokio = metadata.packages.iter_mut().find(|package| package.name.as_str() == "tokio").expect("used");
    tokio.source = None;
    assert_eq!(other_sources(&metadata), ["tokio comes from None"]);
}
