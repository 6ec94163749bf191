//! Where the programs under test and the tests' own C library are. `tests/run` builds the programs and names their
//! directory; started by hand, cargo is asked once.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Packages whose binaries tests start.
const PACKAGES: &[&str] = &["leader-svc", "follower-agent", "highwater-cli"];

/// The path of a program: `leader-svc`, `follower-agent` or `highwater`.
///
/// # Panics
/// When it cannot be built, or is not there.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    let path = directory().join(name);
    assert!(path.exists(), "{} is not there; tests/run builds it", path.display());
    path
}

/// A program to be run to its end with its arguments, as the command line tool is.
#[must_use]
pub fn command(name: &str) -> Command {
    let mut command = Command::new(path(name));
    forget_settings(&mut command);
    command
}

/// Keeps from a program under test what configures the programs of whoever runs the tests.
pub(crate) fn forget_settings(command: &mut Command) {
    for (name, _) in env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"HIGHWATER_")) {
        command.env_remove(name);
    }
}

/// The root of the repository.
#[must_use]
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests crate lies in the repository")
}

fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| match env::var_os("HWTEST_BIN_DIR") {
        Some(directory) => directory.into(),
        None => build(),
    })
}

/// Builds the programs into the target directory that this test was built into.
fn build() -> PathBuf {
    let directory = build_directory();
    let target = directory.parent().expect("a profile's directory lies in the target directory");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let status = Command::new(cargo)
        .arg("build")
        .args(PACKAGES.iter().flat_map(|package| ["-p", package]))
        .current_dir(repository())
        .env("CARGO_TARGET_DIR", target)
        .status()
        .expect("cargo starts");
    assert!(status.success(), "the programs under test do not build");
    directory
}

/// `target/debug`, seen from the test's own executable in `target/debug/deps`.
fn build_directory() -> PathBuf {
    let executable = env::current_exe().expect("a running program has a path");
    executable.ancestors().nth(2).expect("cargo puts tests two levels deep").to_owned()
}

/// The library that [`crate::power_loss`] preloads. It is compiled once per content of its source: several checkouts may
/// share a target directory.
///
/// # Panics
/// When there is no C compiler, or it refuses.
#[must_use]
pub fn power_loss_shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| {
        let source = repository().join("tests/shim/power_loss.c");
        let mut hasher = DefaultHasher::new();
        fs::read(&source).expect("the source is in the repository").hash(&mut hasher);
        let library = build_directory().join(format!("power_loss-{:016x}.so", hasher.finish()));
        if !library.exists() {
            // Built aside and moved: another test program may be compiling the same library.
            let fresh = library.with_extension(format!("{}.so", std::process::id()));
            let status = Command::new("cc")
                .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
                .args([&fresh, &source])
                .status()
                .expect("a C compiler, cc, is installed");
            assert!(status.success(), "the power-loss shim does not compile");
            fs::rename(&fresh, &library).expect("a file moves within its directory");
        }
        library
    })
}
