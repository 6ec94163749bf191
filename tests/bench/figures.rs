//! What every benchmark needs: CPU time as the kernel counts it, spreads, and on what machine they were measured.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

/// Linux counts CPU time for /proc in hundredths of a second, on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// User and system time of a process in seconds, ended threads included.
pub(crate) fn cpu_seconds(process: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("the process runs");
    // The second field is the program's name in parentheses, and may hold spaces.
    let fields = stat.rsplit_once(')').expect("a name in parentheses").1;
    let ticks = |index| -> f64 {
        let field = fields.split_whitespace().nth(index).expect("/proc/PID/stat has its fields");
        field.parse().expect("a number of ticks")
    };
    (ticks(11) + ticks(12)) / TICKS_PER_SECOND
}

/// Minimum, median, maximum.
pub(crate) fn spread(figures: impl Iterator<Item = f64>) -> Value {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    let at = |index: usize| figures.get(index).copied();
    let (last, middle) = (figures.len().saturating_sub(1), figures.len() / 2);
    // Of an even number, the mean of the two in the middle.
    let median = at(last / 2).zip(at(middle)).map(|(below, above)| rounded(f64::midpoint(below, above)));
    json!({ "min": at(0).map(rounded), "median": median, "max": at(last).map(rounded) })
}

/// With two digits behind the point.
pub(crate) fn rounded(figure: f64) -> f64 {
    (figure * 100.0).round() / 100.0
}

/// Adds to a benchmark's figures when, of what and on what they were measured.
pub(crate) fn document(benchmark: &str, data: Value, summary: Value, rounds: Value) -> Value {
    json!({
        "benchmark": benchmark,
        "date": said_by("date", &["-u", "+%F"]),
        "revision": said_by("git", &["rev-parse", "--short", "HEAD"]),
        "machine": {
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "kernel": said_by("uname", &["-sr"]),
            "memory": memory(),
        },
        "data": data,
        "summary": summary,
        "rounds": rounds,
    })
}

fn said_by(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

fn memory() -> String {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap_or_default().trim().to_owned()
}
