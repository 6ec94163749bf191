//! Real programs that tests run against, built by the installers in tests/parts into the cache.
//!
//! A part that is missing fails the test that needs it. Only when `tests/run` has said that it ran out of time for a
//! part is the test left out, by its name in the summary.

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory of a part: `grpcurl`, `buf` or `kafka`. `None`: it was left out, and the test, now named in the
/// summary, returns.
///
/// # Panics
/// When the part is missing and was not left out.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    if is_left_out(name, &env::var("HWTEST_LEFT_OUT").unwrap_or_default()) {
        note_left_out(name);
        return None;
    }
    let path = cache().join("parts").join(name);
    assert!(path.exists(), "the part {name} is missing; tests/parts/{name}.sh installs it");
    Some(path)
}

/// grpcurl's executable.
#[must_use]
pub fn grpcurl() -> Option<PathBuf> {
    Some(find("grpcurl")?.join("grpcurl"))
}

/// Kafka's DumpLogSegments, ready for its arguments (`--files A,B --deep-iteration …`). It exits 0 on corruption: read
/// what it prints.
#[must_use]
pub fn dump_log_segments() -> Option<Command> {
    let jars = find("kafka")?.join("libs/*");
    let mut command = Command::new("java");
    command.args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]).arg(jars);
    command.arg("org.apache.kafka.tools.DumpLogSegments");
    Some(command)
}

/// The folder that `tests/run` and the installers use.
fn cache() -> PathBuf {
    let folder = |name: &str| env::var_os(name).map(PathBuf::from);
    folder("HWTEST_CACHE").or_else(|| folder("HIGHWATER_CACHE")).unwrap_or_else(|| {
        let base = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
        base.expect("HOME is set").join("highwater")
    })
}

fn is_left_out(name: &str, left_out: &str) -> bool {
    left_out.split_whitespace().any(|part| part == name)
}

/// Tells `tests/run` which test did not run.
fn note_left_out(name: &str) {
    let thread = std::thread::current();
    let line = format!("test {} (needs {name})\n", thread.name().unwrap_or("of unknown name"));
    if let Some(log) = env::var_os("HWTEST_LEFT_OUT_LOG") {
        let mut file =
            OpenOptions::new().append(true).open(Path::new(&log)).expect("tests/run made the file");
        file.write_all(line.as_bytes()).expect("the file can be written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_parts_are_left_out() {
        assert!(is_left_out("kafka", " buf kafka"));
        assert!(!is_left_out("kafka", "kafkacat buf"));
        assert!(!is_left_out("kafka", ""));
    }

    #[test]
    fn grpcurl_runs() {
        let Some(grpcurl) = grpcurl() else { return };
        let status = Command::new(grpcurl).arg("--version").status().expect("it starts");
        assert!(status.success());
    }

    #[test]
    fn kafkas_dump_runs() {
        let Some(mut dump) = dump_log_segments() else { return };
        let output = dump.arg("--help").output().expect("java starts");
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("--deep-iteration"), "{text}");
    }
}
