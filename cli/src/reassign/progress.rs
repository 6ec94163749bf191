//! Waiting for moves: bars with the time that is left on a terminal, a line now and then elsewhere; on standard error.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use highwater_client::{AddedReplica, Client, ClientError, Reassignment};
use highwater_types::{NodeId, PartitionEpoch, PartitionIndex, TopicName};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tokio::time::{Instant, timeout_at};

use crate::figures::{size, time};
use crate::outcome::CommandError;

/// How often the leaders are asked.
const LOOK: Duration = Duration::from_millis(500);
/// How often lines are printed where there is no terminal.
const PRINT: Duration = Duration::from_secs(2);

/// Partitions of a topic that are waited for, with the replicas that they are to have.
#[derive(Debug)]
pub(super) struct Awaited {
    pub(super) topic: TopicName,
    pub(super) partitions: BTreeMap<PartitionIndex, Aim>,
}

/// What a partition is to become.
#[derive(Debug)]
pub(super) struct Aim {
    pub(super) replicas: Vec<NodeId>,
    /// The version of the record that says so: who knows an older one has not heard of it.
    pub(super) since: PartitionEpoch,
}

impl Awaited {
    /// Whether whoever is asked has heard of all of it, and that nothing of it is being moved any more.
    async fn is_over(&self, client: &Client) -> Result<bool, ClientError> {
        let topic = client.describe_topic(&self.topic).await?;
        Ok(topic.partitions.iter().map(|partition| &partition.record).all(|record| {
            let aim = self.partitions.get(&record.partition);
            aim.is_none_or(|aim| record.partition_epoch >= aim.since && !record.is_being_moved())
        }))
    }
}

/// Shows how far what is `awaited` is (without it: everything of `topics`), until nothing of it is being moved; for `bound` at
/// most.
///
/// # Errors
/// [`CommandError::Failed`] when it is not done in time, with what is missing.
pub(super) async fn follow(
    client: &Client,
    awaited: Option<&Awaited>,
    topics: &[TopicName],
    bound: Option<Duration>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let until = bound.map(|bound| Instant::now() + bound);
    let topics = awaited.map_or(topics, |awaited| std::slice::from_ref(&awaited.topic));
    let mut view = View::new();
    let mut missing = "nobody has told how far it is".to_owned();
    out.flush()?;
    loop {
        let looked = match until {
            Some(until) => timeout_at(until, client.reassignments(topics)).await,
            None => Ok(client.reassignments(topics).await),
        };
        match looked {
            Ok(Ok(look)) => {
                let mut moving = look.moving;
                moving.retain(|row| {
                    awaited.is_none_or(|awaited| awaited.partitions.contains_key(&row.partition))
                });
                let is_over = match awaited {
                    Some(awaited) if moving.is_empty() => awaited.is_over(client).await,
                    Some(_) | None => Ok(moving.is_empty()),
                };
                match is_over {
                    Ok(true) => {
                        view.clear();
                        return Ok(());
                    }
                    Ok(false) if moving.is_empty() => {
                        missing = "the node that was asked has not heard of it yet".to_owned();
                    }
                    Ok(false) => {
                        view.show(&moving);
                        missing = moving.iter().flat_map(lines).collect::<Vec<_>>().join("; ");
                    }
                    Err(error) => missing = error.to_string(),
                }
            }
            // Leaders move: whoever waits goes on to wait.
            Ok(Err(error)) => missing = error.to_string(),
            Err(_) => {}
        }
        if until.is_some_and(|until| Instant::now() + LOOK >= until) {
            view.clear();
            return Err(CommandError::Failed(format!("not done in time: {missing}")));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What is drawn or printed.
#[derive(Debug)]
enum View {
    Bars { all: MultiProgress, bars: BTreeMap<String, ProgressBar> },
    Lines { next: Instant },
}

impl View {
    fn new() -> Self {
        if io::stderr().is_terminal() {
            Self::Bars { all: MultiProgress::new(), bars: BTreeMap::new() }
        } else {
            Self::Lines { next: Instant::now() }
        }
    }

    fn show(&mut self, moving: &[Reassignment]) {
        match self {
            Self::Bars { all, bars } => {
                for (row, added) in moving.iter().flat_map(|row| row.adding.iter().map(move |a| (row, a))) {
                    let bar = bars.entry(name(row, added)).or_insert_with_key(|name| {
                        let style = ProgressStyle::with_template("{prefix} {bar:30} {msg}");
                        let style = style.expect("the template is a legal constant");
                        all.add(ProgressBar::new(0).with_style(style).with_prefix(name.clone()))
                    });
                    let (held, left) = (added.bytes_held.unwrap_or(0), added.bytes_left.unwrap_or(0));
                    bar.set_message(figures(added));
                    bar.update(|state| {
                        state.set_len(held.saturating_add(left));
                        state.set_pos(held);
                    });
                }
            }
            Self::Lines { next } if *next <= Instant::now() => {
                *next = Instant::now() + PRINT;
                for line in moving.iter().flat_map(lines) {
                    // That nobody listens there is no failure.
                    let _ = writeln!(io::stderr(), "{line}");
                }
            }
            Self::Lines { .. } => {}
        }
    }

    fn clear(&self) {
        if let Self::Bars { all, .. } = self {
            // What cannot be cleared stays on the screen.
            let _ = all.clear();
        }
    }
}

fn name(moving: &Reassignment, added: &AddedReplica) -> String {
    format!("{}-{} to node {}", moving.topic, moving.partition, added.node)
}

/// A line for each added replica, or one for what is left to do without any.
fn lines(moving: &Reassignment) -> Vec<String> {
    if moving.adding.iter().all(|added| added.in_sync) {
        let (topic, partition, removing) =
            (&moving.topic, moving.partition, super::view::nodes(&moving.removing));
        let before = match moving.adding.is_empty() {
            true => "the leader that stays reads its log whole",
            false => "all added are in sync",
        };
        return vec![format!("{topic}-{partition}: {before}; removing {removing}")];
    }
    moving.adding.iter().map(|added| format!("{}: {}", name(moving, added), figures(added))).collect()
}

/// `2.0 MB of 10.0 MB, 1.0 MB/s, 8.00 s left`, as far as it is known.
fn figures(added: &AddedReplica) -> String {
    if added.in_sync {
        return "in sync".to_owned();
    }
    let Some((held, left)) = added.bytes_held.zip(added.bytes_left) else {
        return "has not fetched yet".to_owned();
    };
    let mut text = format!("{} of {}", size(held), size(held.saturating_add(left)));
    if let Some(rate) = added.bytes_per_second {
        text.push_str(&format!(", {}/s", size(rate)));
    }
    if let Some(left) = added.left {
        text.push_str(&format!(", {} left", time(left)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::moving;
    use super::*;

    #[test]
    fn a_line_tells_how_much_is_there_how_fast_it_goes_and_how_long_it_takes() {
        let mut moving = moving();
        assert_eq!(lines(&moving), ["orders-0 to node 4: 2.0 MB of 10.0 MB, 1.0 MB/s, 8.10 s left"]);
        moving.adding[0] = AddedReplica { left: None, bytes_per_second: None, ..moving.adding[0] };
        assert_eq!(lines(&moving), ["orders-0 to node 4: 2.0 MB of 10.0 MB"]);
        moving.adding[0].bytes_left = None;
        assert_eq!(lines(&moving), ["orders-0 to node 4: has not fetched yet"]);
        moving.adding[0].in_sync = true;
        assert_eq!(lines(&moving), ["orders-0: all added are in sync; removing 1"]);
    }
}
