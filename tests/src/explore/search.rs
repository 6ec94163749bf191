//! The search: level by level, each level on every core of the machine, and the trace to what was found.

use std::collections::HashSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use highwater_types::planted::{PlantedFault, plant};

use super::action::Action;
use super::bounds::Bounds;
use super::key::Key;
use super::state::State;

/// States that are expanded before what comes of them is looked at, so that little is held twice.
const CHUNK: usize = 4096;

/// The numbering of states.
type Number = u32;

/// What broke, and how it came to that.
#[derive(Clone, Debug)]
pub struct Found {
    /// The rule, and what broke it.
    pub what: String,
    /// The actions of the trace, without those that lead to where the search begins.
    pub actions: usize,
    /// The trace in words: each action and the state after it.
    pub trace: String,
}

/// What came of a search.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Different states.
    pub states: usize,
    /// Actions that led to a state, known or not.
    pub transitions: u64,
    /// The longest of all shortest traces, in actions.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// Whether every state within the bounds was seen.
    pub exhausted: bool,
    /// What broke first.
    pub found: Option<Found>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, transitions, depth, took, exhausted, .. } = self;
        let how = if *exhausted { "exhausted" } else { "not exhausted" };
        let seconds = took.as_secs_f64();
        write!(f, "{how}: {states} states, {transitions} transitions, depth {depth}, {seconds:.1} s")
    }
}

/// A state that a worker reached and that is new, as far as the worker knows.
struct Reached {
    key: Key,
    parent: Number,
    action: Action,
    state: State,
}

/// What a worker found of its part of a chunk.
#[derive(Default)]
struct Part {
    reached: Vec<Reached>,
    transitions: u64,
    /// The first rule that broke: from which state, by which action.
    broken: Option<(Number, Action, String)>,
}

/// Explores everything within `bounds` with these faults planted, until something breaks or `most` states were seen.
#[must_use]
pub fn explore(bounds: Bounds, planted: &[PlantedFault], most: usize) -> Outcome {
    Search::new(planted).run(bounds, most)
}

struct Search<'a> {
    planted: &'a [PlantedFault],
    seen: HashSet<Key>,
    /// By which action each state was reached, and from which; the first was not.
    origins: Vec<(Number, Action)>,
}

impl<'a> Search<'a> {
    fn new(planted: &'a [PlantedFault]) -> Self {
        Self { planted, seen: HashSet::new(), origins: Vec::new() }
    }

    fn run(&mut self, bounds: Bounds, most: usize) -> Outcome {
        let began = Instant::now();
        plant(self.planted);
        let mut outcome = Outcome {
            states: 1,
            transitions: 0,
            depth: 0,
            took: Duration::ZERO,
            exhausted: false,
            found: None,
        };
        match beginning(bounds) {
            Ok(first) => self.levels(&first, most, &mut outcome),
            Err(what) => {
                outcome.found = Some(Found { what, actions: 0, trace: String::new() });
            }
        }
        plant(&[]);
        outcome.states = self.seen.len();
        outcome.took = began.elapsed();
        outcome
    }

    fn levels(&mut self, first: &State, most: usize, outcome: &mut Outcome) {
        self.seen.insert(first.key());
        self.origins.push((0, Action::Follow(0)));
        let mut level = vec![(0, first.clone())];
        while !level.is_empty() {
            let mut next = Vec::new();
            for chunk in level.chunks(CHUNK) {
                for part in self.expand(chunk) {
                    outcome.transitions += part.transitions;
                    if let Some((from, action, what)) = part.broken {
                        outcome.found = Some(self.tell(first, from, action, what));
                        return;
                    }
                    self.merge(part.reached, &mut next);
                }
                if self.seen.len() > most {
                    return;
                }
            }
            outcome.depth += usize::from(!next.is_empty());
            level = next;
        }
        outcome.exhausted = true;
    }

    /// Expands a chunk, a part on each core; parts come back in order, so a search is the same each time.
    fn expand(&self, chunk: &[(Number, State)]) -> Vec<Part> {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let (planted, seen) = (self.planted, &self.seen);
        std::thread::scope(|scope| {
            let parts = chunk.chunks(chunk.len().div_ceil(workers));
            let running: Vec<_> = parts
                .map(|part| {
                    scope.spawn(move || {
                        plant(planted);
                        expand_part(part, seen)
                    })
                })
                .collect();
            running.into_iter().map(|worker| worker.join().expect("a worker does not fail")).collect()
        })
    }

    fn merge(&mut self, reached: Vec<Reached>, next: &mut Vec<(Number, State)>) {
        for Reached { key, parent, action, state } in reached {
            if self.seen.insert(key) {
                let number = Number::try_from(self.origins.len()).expect("fewer states than numbers");
                self.origins.push((parent, action));
                next.push((number, state));
            }
        }
    }

    /// The trace to what broke when `action` was done to state `from`.
    fn tell(&self, first: &State, from: Number, action: Action, what: String) -> Found {
        let mut actions = vec![action];
        let mut at = from;
        while at != 0 {
            let (parent, action) = self.origins[at as usize];
            actions.push(action);
            at = parent;
        }
        actions.reverse();
        let mut state = first.clone();
        let mut trace = format!("{state}\n");
        for (number, action) in actions.iter().enumerate() {
            trace.push_str(&format!("{:>3} {action}\n", number + 1));
            // The last one may break in the middle.
            if let Ok(Ok(Some(after))) = catch_unwind(AssertUnwindSafe(|| state.after(*action))) {
                state = after;
                trace.push_str(&format!("{state}\n"));
            }
        }
        Found { what, actions: actions.len(), trace }
    }
}

/// Where the search begins: with nobody, or with a leader in epoch 1 whom the others follow.
fn beginning(bounds: Bounds) -> Result<State, String> {
    let all = Bounds { elections: bounds.elections + 1, ..bounds };
    let mut state = State::new(if bounds.is_new { bounds } else { all });
    let actions = [Action::Stand(0), Action::Follow(1), Action::Follow(2)];
    for action in actions.iter().filter(|_| !bounds.is_new) {
        let before = state.clone();
        state = state.after(*action)?.ok_or_else(|| format!("{action} comes to nothing"))?;
        state.check(&before)?;
    }
    state.former = Default::default();
    Ok(state)
}

fn expand_part(part: &[(Number, State)], seen: &HashSet<Key>) -> Part {
    let mut found = Part::default();
    let mut mine = HashSet::new();
    for (number, state) in part {
        for action in state.actions() {
            let outcome = catch_unwind(AssertUnwindSafe(|| after_checked(state, action)));
            let broken = match outcome {
                Ok(Ok(None)) => continue,
                Ok(Ok(Some((key, state)))) => {
                    found.transitions += 1;
                    if !seen.contains(&key) && mine.insert(key) {
                        found.reached.push(Reached { key, parent: *number, action, state });
                    }
                    continue;
                }
                Ok(Err(what)) => what,
                Err(panic) => format!("panicked: {}", panic_text(&*panic)),
            };
            found.broken = Some((*number, action, broken));
            return found;
        }
    }
    found
}

/// The state after an action, with its key, when every invariant holds.
fn after_checked(state: &State, action: Action) -> Result<Option<(Key, State)>, String> {
    let Some(mut next) = state.after(action)? else { return Ok(None) };
    next.check(state)?;
    Ok(Some((next.key(), next)))
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("(no text)").to_owned()
}
