//! Runs seeds of the core simulation: `fuzz --seed N` replays one and tells every step; `fuzz --iterations N` runs many, on
//! every core, until one breaks a rule. Exits 1 when a rule was broken.
#![allow(clippy::print_stdout, reason = "its output is what it is for")]

use std::process::ExitCode;

use clap::Parser;
use system_tests::core_sim::{Planted, campaign, replay};

/// Runs seeds of the core simulation.
#[derive(Debug, Parser)]
struct Options {
    /// Replays this seed and tells every step; with `--iterations`, where to begin.
    #[arg(long)]
    seed: Option<u64>,
    /// How many seeds to run.
    #[arg(long)]
    iterations: Option<u64>,
    /// How many threads run them.
    #[arg(long)]
    threads: Option<usize>,
    /// Breaks these rules, by the names of `PlantedFault`.
    #[arg(long)]
    plant: Vec<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let planted = match Planted::by_names(&options.plant) {
        Ok(planted) => planted,
        Err(unknown) => {
            println!("{unknown}");
            return ExitCode::from(2);
        }
    };
    let failure = match (options.seed, options.iterations) {
        (Some(seed), None) => replay(seed, &planted),
        (from, iterations) => {
            let from = from.unwrap_or(0);
            let outcome = campaign(from..from + iterations.unwrap_or(1000), options.threads, &planted);
            println!("{outcome}");
            outcome.failure
        }
    };
    match failure {
        None => ExitCode::SUCCESS,
        Some(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}
