//! Catch-up of one follower: our pair beside Kafka's, in alternating rounds on one machine. tests/bench/README.md says what
//! is measured and how; tests/bench/run builds and starts it.

#[path = "../figures.rs"]
mod figures;
mod kafka;
mod measure;
mod ours;
mod report;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::Command;

use clap::Parser;
use highwater_types::Durability;

use kafka::Kafka;
use ours::Ours;
use report::{KAFKA, Row};

/// The topic, on both sides.
const TOPIC: &str = "bench";

#[derive(Debug, Parser)]
struct Arguments {
    /// How much is replicated, in GiB of record values.
    #[arg(long, default_value_t = 2)]
    gib: u64,
    /// Rounds that count; one more comes first as a warm-up.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// The size at which producers close a batch, in bytes; the default is Kafka's.
    #[arg(long, default_value_t = 16_384)]
    batch_bytes: usize,
    /// Which systems take part.
    #[arg(long, value_delimiter = ',', default_value = "ours-page-cache,kafka,ours-fsync")]
    systems: Vec<String>,
    /// Where the figures are written; nowhere when absent.
    #[arg(long)]
    output: Option<PathBuf>,
}

/// What is replicated.
struct Data {
    records: u64,
    record_bytes: usize,
    batch_bytes: usize,
}

/// A system with its data in place.
enum System {
    Ours(&'static str, Box<Ours>),
    Kafka(Box<Kafka>),
}

impl System {
    async fn start(name: &str, data: &Data) -> Option<Self> {
        match name {
            "ours-page-cache" => {
                let ours = Ours::start(Durability::PageCache, data).await;
                Some(Self::Ours("ours-page-cache", Box::new(ours)))
            }
            "ours-fsync" => {
                let ours = Ours::start(Durability::Fsync, data).await;
                Some(Self::Ours("ours-fsync", Box::new(ours)))
            }
            KAFKA => Kafka::start(data).await.map(|kafka| Self::Kafka(Box::new(kafka))),
            other => panic!("unknown system '{other}': ours-page-cache, ours-fsync and kafka are allowed"),
        }
    }

    async fn round(&mut self, round: u32) -> Row {
        // What earlier rounds have left to be written would be written during this one.
        let synced = Command::new("sync").status().expect("sync is installed");
        assert!(synced.success(), "the disks take what is written");
        let (system, measured) = match self {
            Self::Ours(name, ours) => (*name, ours.round().await),
            Self::Kafka(kafka) => (KAFKA, kafka.round().await),
        };
        Row { system, round, measured }
    }
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let arguments = Arguments::parse();
    let record_bytes = 1024;
    let records = (arguments.gib << 30) / 1024;
    let data = Data { records, record_bytes, batch_bytes: arguments.batch_bytes };
    let mut out = io::stdout();
    let mut systems = Vec::new();
    for name in &arguments.systems {
        writeln!(out, "filling {name}")?;
        systems.extend(System::start(name, &data).await);
    }
    writeln!(out, "{}", report::HEAD)?;
    let mut rows = Vec::new();
    for round in 1..=arguments.rounds + 1 {
        for system in &mut systems {
            let row = system.round(round).await;
            writeln!(out, "{}", row.text())?;
            rows.push(row);
        }
    }
    let document = report::document(&data, &rows);
    writeln!(out, "{:#}", document.get("summary").unwrap_or(&document))?;
    match arguments.output {
        Some(file) => std::fs::write(file, format!("{document:#}\n")),
        None => Ok(()),
    }
}
