//! Creates the demo's topic, sends the input while a leader is killed, and waits until every follower has it.

use std::io::Write;
use std::time::{Duration, Instant};

use bytes::Bytes;
use highwater_client::{Client, CreateTopic, DescribedTopic, Placement, ProducerConfig, ProducerRecord};
use highwater_types::{ErrorCode, TopicName, TopicProperties};

use super::input::{Input, Survey};
use super::nodes::Nodes;
use super::takeover::{Killed, Stages, take_over};
use super::watch::{Peak, Watch, is_caught_up};
use crate::ledger::digest;
use crate::lines::{Content, Line};
use crate::load::{Account, Loader};
use crate::outcome::CommandError;
use crate::produce;

/// How long the nodes may take to see each other live, and then a new topic to have all its replicas in sync.
const READY_BOUND: Duration = Duration::from_secs(30);
/// How long the followers may take to get what is acknowledged already.
const CATCH_UP_BOUND: Duration = Duration::from_secs(120);
/// How often it is looked whether that is so.
const POLL: Duration = Duration::from_millis(50);
/// What a batch may be larger than the longest line, in bytes.
const BATCH_OVERHEAD: u64 = 1024;
/// Records that are under way, in bytes. More would not be faster, and each would wait longer.
const UNDER_WAY_BYTES: usize = 8 << 20;

/// What became of the input.
#[derive(Debug)]
pub(super) struct Replicated {
    pub(super) account: Account,
    /// Records that are acknowledged.
    pub(super) records: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// From the first record to the last acknowledgement.
    pub(super) took: Duration,
    /// The node that was killed meanwhile, if there was another.
    pub(super) killed: Option<Killed>,
    /// From the last acknowledgement, and the return of the killed node, until every follower was seen to have everything.
    pub(super) caught_up: Duration,
    pub(super) peak: Peak,
}

/// Creates the topic on all nodes and waits until every replica is in sync.
pub(super) async fn create_topic(
    client: &Client,
    topic: &CreateTopic,
) -> Result<DescribedTopic, CommandError> {
    let failed = |e| CommandError::cluster(format!("create topic {}", topic.name), e);
    let until = Instant::now() + READY_BOUND;
    loop {
        match client.create_topic(topic).await {
            Ok(_) => break,
            // The nodes have just started: not all of them need have seen a sign of life of the others.
            Err(e) if e.code() == Some(ErrorCode::InvalidRequest) && Instant::now() < until => {
                tokio::time::sleep(POLL).await;
            }
            Err(e) => return Err(failed(e)),
        }
    }
    led(client, &topic.name).await
}

/// Waits until every partition has a leader and all its replicas in sync; describes it then.
pub(super) async fn led(client: &Client, topic: &TopicName) -> Result<DescribedTopic, CommandError> {
    let in_sync = async {
        loop {
            let described = client.describe_topic(topic).await;
            let described =
                described.map_err(|e| CommandError::cluster(format!("describe topic {topic}"), e))?;
            let mut partitions = described.partitions.iter().map(|partition| &partition.record);
            if partitions.all(|record| record.leader.is_some() && record.isr.len() == record.replicas.len()) {
                return Ok(DescribedTopic::clone(&described));
            }
            tokio::time::sleep(POLL).await;
        }
    };
    within(READY_BOUND, "not every replica is led and in sync", in_sync).await
}

/// The topic that the input needs.
pub(super) fn topic(
    name: TopicName,
    partitions: i32,
    replicas: usize,
    mut properties: TopicProperties,
    survey: &Survey,
) -> CreateTopic {
    let needed = u32::try_from(survey.longest.saturating_add(BATCH_OVERHEAD)).unwrap_or(u32::MAX);
    properties.max_message_bytes = properties.max_message_bytes.max(needed);
    CreateTopic { name, partitions, placement: Placement::Factor(replicas), properties }
}

/// Sends the input with `acks=all`, with a takeover in its middle where there is another node to take over, and waits until
/// every follower has it.
pub(super) async fn replicate(
    client: &Client,
    topic: &DescribedTopic,
    (input, survey): (&Input, &Survey),
    nodes: &Nodes,
    out: &mut dyn Write,
) -> Result<Replicated, CommandError> {
    let name = &topic.record.name;
    let longest = usize::try_from(survey.longest.saturating_add(BATCH_OVERHEAD)).unwrap_or(usize::MAX);
    let config = ProducerConfig {
        buffer_bytes: UNDER_WAY_BYTES.max(longest.saturating_mul(2)),
        ..ProducerConfig::default()
    };
    let loader = produce::start(client.clone(), config, &topic.record)?;
    let progress = loader.progress();
    let watch = Watch::start(client.clone(), name.clone(), loader.progress(), survey.bytes);
    let stages = Stages::new(survey.records);
    let begun = Instant::now();
    let sending = async { send_all(input, loader, &stages).await.map(|account| (account, begun.elapsed())) };
    let taking_over = async {
        if topic.partitions.iter().all(|partition| partition.record.replicas.len() < 2) {
            stages.skip();
            return Ok(None);
        }
        take_over(nodes, client, name, &progress, &stages, out).await
    };
    let ((account, took), killed) = tokio::try_join!(sending, taking_over)?;
    let waited = Instant::now();
    let caught_up = all_caught_up(client, topic).await;
    let peak = watch.stop().await;
    caught_up?;
    let (records, bytes, caught_up) = (progress.records(), progress.bytes(), waited.elapsed());
    Ok(Replicated { account, records, bytes, took, killed, caught_up, peak })
}

async fn send_all(input: &Input, mut loader: Loader, stages: &Stages) -> Result<Account, CommandError> {
    // Also when it ends early: nobody waits for a record that will not come.
    let _ended = stages.end_of_sending();
    let mut lines = input.lines()?;
    while let Some(read) = lines.recv().await {
        let lines = read.map_err(|source| CommandError::Read { what: input.to_string(), source })?;
        for Line { number, content } in lines {
            match content {
                Content::Whole(value) => send(&mut loader, number, value).await,
                Content::TooLong { bytes } => {
                    loader.refuse(number, format!("the input changed: it has {bytes} bytes now"));
                }
            }
            stages.sent_one().await;
        }
        if loader.must_stop() {
            break;
        }
    }
    Ok(loader.finish().await)
}

async fn send(loader: &mut Loader, number: u64, value: Bytes) {
    let digest = digest(&value);
    loader.send(number, ProducerRecord::of_value(value), digest).await;
}

async fn all_caught_up(client: &Client, topic: &DescribedTopic) -> Result<(), CommandError> {
    let replicas = topic.partitions.iter().map(|partition| partition.record.replicas.len());
    let followers: usize = replicas.map(|count| count.saturating_sub(1)).sum();
    let caught_up = async {
        loop {
            let look = client.describe_replication(std::slice::from_ref(&topic.record.name)).await;
            let look = look.map_err(|e| CommandError::cluster("describe replication", e))?;
            if is_caught_up(&look.rows, followers) {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
    };
    within(CATCH_UP_BOUND, "not every follower has everything", caught_up).await
}

async fn within<T>(
    bound: Duration,
    problem: &str,
    wish: impl Future<Output = Result<T, CommandError>>,
) -> Result<T, CommandError> {
    let timed_out = |_| CommandError::Failed(format!("{problem} after {bound:?}"));
    tokio::time::timeout(bound, wish).await.map_err(timed_out)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topic_takes_the_longest_line() {
        let topic = |longest| {
            let survey = Survey { records: 1, bytes: longest, longest };
            topic("demo".parse().unwrap(), 6, 3, TopicProperties::default(), &survey)
        };
        assert_eq!(topic(100).properties.max_message_bytes, TopicProperties::default().max_message_bytes);
        assert_eq!(topic(5_000_000).properties.max_message_bytes, 5_001_024);
    }
}
