//! Creates the demo's topic, sends the input, and waits until every follower has it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use highwater_client::{Client, CreateTopic, DescribedTopic, Placement, ProducerConfig, ProducerRecord};
use highwater_types::{ErrorCode, TopicName, TopicProperties};

use super::input::{Input, Survey};
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
    /// From the last acknowledgement until every follower was seen to have everything.
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
    let in_sync = async {
        loop {
            let described = client.describe_topic(&topic.name).await.map_err(failed)?;
            let mut partitions = described.partitions.iter().map(|partition| &partition.record);
            if partitions.all(|record| record.leader.is_some() && record.isr.len() == record.replicas.len()) {
                return Ok(DescribedTopic::clone(&described));
            }
            tokio::time::sleep(POLL).await;
        }
    };
    within(READY_BOUND, "not every replica of the new topic is in sync", in_sync).await
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

/// Sends the input with `acks=all` and waits until every follower has it.
pub(super) async fn replicate(
    client: &Client,
    topic: &DescribedTopic,
    input: &Input,
    survey: &Survey,
) -> Result<Replicated, CommandError> {
    let longest = usize::try_from(survey.longest.saturating_add(BATCH_OVERHEAD)).unwrap_or(usize::MAX);
    let config = ProducerConfig {
        buffer_bytes: UNDER_WAY_BYTES.max(longest.saturating_mul(2)),
        ..ProducerConfig::default()
    };
    let loader = produce::start(client.clone(), config, &topic.record)?;
    let progress = loader.progress();
    let watch = Watch::start(client.clone(), topic.record.name.clone(), loader.progress(), survey.bytes);
    let begun = Instant::now();
    let account = send_all(input, loader).await?;
    let took = begun.elapsed();
    let waited = Instant::now();
    let caught_up = all_caught_up(client, topic).await;
    let peak = watch.stop().await;
    caught_up?;
    let (records, bytes, caught_up) = (progress.records(), progress.bytes(), waited.elapsed());
    Ok(Replicated { account, records, bytes, took, caught_up, peak })
}

async fn send_all(input: &Input, mut loader: Loader) -> Result<Account, CommandError> {
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
