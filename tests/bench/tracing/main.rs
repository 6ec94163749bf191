//! What telemetry costs: the same load on pairs with and without a collector, in alternating rounds on one machine.
//! tests/bench/README.md says what is measured and how; tests/bench/run builds and starts it.

#![allow(clippy::indexing_slicing, reason = "there are three pairs, with two programs each")]

#[path = "../figures.rs"]
mod figures;
mod pair;
mod report;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use system_tests::fake_collector::FakeCollector;

use pair::Pair;
use report::Row;

#[derive(Debug, Parser)]
struct Arguments {
    /// Consumer fetches a second, on all connections together.
    #[arg(long, default_value_t = 10_000)]
    rate: u32,
    /// Connections that fetch.
    #[arg(long, default_value_t = 16)]
    connections: u32,
    /// How long each pair is under load in each round, in turn, in seconds: a period of the metrics, or several.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Rounds that count; one more comes first as a warm-up.
    #[arg(long, default_value_t = 10)]
    rounds: u32,
    /// Where the figures are written; nowhere when absent.
    #[arg(long)]
    output: Option<PathBuf>,
}

/// What every pair gets to do.
#[derive(Clone, Copy, Debug)]
struct Load {
    rate: u32,
    connections: u32,
    time: Duration,
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let arguments = Arguments::parse();
    let load = Load {
        rate: arguments.rate,
        connections: arguments.connections,
        time: Duration::from_secs(arguments.seconds),
    };
    let collector = FakeCollector::start().await;
    let endpoint = Some(collector.address());
    // Two pairs without a collector: what they differ by is what such a measurement is worth.
    let pairs = [
        Pair::start(report::OFF, None, load).await,
        Pair::start(report::ON, endpoint, load).await,
        Pair::start(report::OFF_TOO, None, load).await,
    ];
    let mut out = io::stdout();
    writeln!(out, "{}", report::HEAD)?;
    let mut rows = Vec::new();
    for round in 1..=arguments.rounds + 1 {
        for row in one_round(&pairs, round).await {
            writeln!(out, "{}", row.text())?;
            rows.push(row);
        }
    }
    assert!(collector.spans().len() > 100, "some of the calls are traced");
    let document = report::document(load, &rows);
    writeln!(out, "{:#}", document.get("summary").unwrap_or(&document))?;
    match arguments.output {
        Some(file) => std::fs::write(file, format!("{document:#}\n")),
        None => Ok(()),
    }
}

/// Each pair in turn.
async fn one_round(pairs: &[Pair; 3], round: u32) -> Vec<Row> {
    let mut rows = Vec::new();
    for turn in 0..pairs.len() {
        // No pair is always the first one.
        let pair = &pairs[(turn + round as usize) % pairs.len()];
        rows.push(Row { pair: pair.name, round, measured: pair.measure().await });
    }
    rows
}
