//! The manifests in deploy/kubernetes.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{parts, programs};

/// The directory of each overlay.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn overlays() -> Vec<PathBuf> {
    let directory = programs::repository().join("deploy/kubernetes/overlays");
    let entries = directory.read_dir().expect("there are overlays");
    let mut overlays: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    overlays.sort();
    assert!(!overlays.is_empty(), "there are overlays");
    overlays
}

/// What an overlay amounts to, as YAML documents; `None` when kubectl was left out.
///
/// # Panics
/// When kustomize refuses it.
#[must_use]
pub fn render(overlay: &Path) -> Option<String> {
    let kubectl = parts::find("kubectl")?.join("kubectl");
    let output = Command::new(kubectl).arg("kustomize").arg(overlay).output().expect("kubectl starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).expect("manifests are text"))
}
