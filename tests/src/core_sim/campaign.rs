//! Many seeds, on several threads, until one breaks a rule; and one seed, told in words.

use std::fmt;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use highwater_types::planted::{PlantedFault, plant};

use super::{Failure, Report, run};

/// Rules that are broken on purpose.
#[derive(Clone, Debug, Default)]
pub struct Planted(pub Vec<PlantedFault>);

impl Planted {
    /// The faults of these names.
    ///
    /// # Errors
    /// A name that no fault has, with those that there are.
    pub fn by_names(names: &[String]) -> Result<Self, String> {
        let find = |name: &String| {
            let found = PlantedFault::ALL.iter().find(|fault| format!("{fault:?}") == *name);
            found
                .copied()
                .ok_or_else(|| format!("no fault is named {name}; there are {:?}", PlantedFault::ALL))
        };
        names.iter().map(find).collect::<Result<_, _>>().map(Self)
    }
}

/// What came of many seeds.
#[derive(Debug)]
pub struct Outcome {
    /// How many seeds were run to their end.
    pub seeds: u64,
    /// What they did, in all.
    pub total: Report,
    /// How long that took.
    pub took: Duration,
    /// The lowest seed that was found to break a rule.
    pub failure: Option<Failure>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { steps, committed, acknowledged, read, leaderships, unclean, repairs, faults, .. } =
            &self.total;
        let seconds = self.took.as_secs_f64();
        writeln!(
            f,
            "core_sim: {} seeds, {steps} steps in {seconds:.1} s ({:.0} seeds/s); {leaderships} leaderships, {unclean} of them \
             unclean; batches: {committed} committed, {acknowledged} acknowledged, {read} read; {repairs} repairs of damage",
            self.seeds,
            f64::from(u32::try_from(self.seeds).unwrap_or(u32::MAX)) / seconds.max(0.001),
        )?;
        let kinds: Vec<_> = faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        write!(f, "faults injected: {}", kinds.join(", "))
    }
}

/// Runs the seeds until one breaks a rule; those that run at that moment end first.
#[must_use]
pub fn campaign(seeds: Range<u64>, threads: Option<usize>, planted: &Planted) -> Outcome {
    let began = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let found: Mutex<(u64, Report, Option<Failure>)> = Mutex::default();
    let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                plant(&planted.0);
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let outcome = run(seed, false);
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    match outcome {
                        Ok(report) => {
                            found.0 += 1;
                            found.1.add(&report);
                        }
                        Err(failure) => {
                            next.store(seeds.end, Ordering::Relaxed);
                            if found.2.as_ref().is_none_or(|other| failure.seed < other.seed) {
                                found.2 = Some(failure);
                            }
                        }
                    }
                }
            });
        }
    });
    let (seeds, total, failure) = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    Outcome { seeds, total, took: began.elapsed(), failure }
}

/// Runs one seed and tells every step on standard output.
#[must_use]
#[allow(clippy::print_stdout, reason = "that is what it is for")]
pub fn replay(seed: u64, planted: &Planted) -> Option<Failure> {
    plant(&planted.0);
    match run(seed, true) {
        Ok(report) => {
            println!("{}", report.trace);
            None
        }
        Err(failure) => {
            println!("{}", failure.trace);
            Some(failure)
        }
    }
}
