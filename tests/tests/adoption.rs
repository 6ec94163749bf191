//! A2, the serving half: directories that Kafka wrote, adopted by a leader-svc, reach a follower byte for byte; damaged ones
//! are refused or cut, and named as what they are (design.md 2, 6.2).

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by a panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use highwater_client::{AdoptedPartition, Client, ClientConfig, ClientError, DescribedTopic};
use highwater_records::{BatchView, Compression, batches};
use highwater_types::{NodeId, Program, TopicName, TopicProperties, TopicRecord};
use highwater_wire::admin::{AdoptTopic, Placement};
use system_tests::cluster::{Cluster, Plan};
use system_tests::fixtures::{ALL, Fixture};
use system_tests::{log_dump, log_files, wait};
use uuid::Uuid;

/// Small, so that the follower begins several segments.
const SEGMENT_BYTES: u32 = 16 << 10;
/// Fifty partitions on a busy machine.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(60);

/// A topic's directories: `<parent>/<topic>-N`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Source {
    topic: String,
    parent: PathBuf,
}

impl Source {
    fn partitions(&self) -> Vec<(i32, PathBuf)> {
        let mut found: Vec<_> = fs::read_dir(&self.parent)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter_map(|path| {
                let (topic, index) = path.file_name()?.to_str()?.rsplit_once('-')?;
                (topic == self.topic).then(|| (index.parse().unwrap(), path.clone()))
            })
            .collect();
        found.sort();
        found
    }

    /// What `log-start-offset-checkpoint` says; Kafka leaves out logs that start where their first segment does.
    fn log_starts(&self) -> BTreeMap<i32, i64> {
        let text = fs::read_to_string(self.parent.join("log-start-offset-checkpoint")).unwrap_or_default();
        let entry = |line: &str| {
            let mut fields = line.split(' ');
            let is_ours = fields.next()? == self.topic;
            let index = fields.next()?.parse().ok()?;
            is_ours.then_some((index, fields.next()?.parse().ok()?))
        };
        text.lines().filter_map(entry).collect()
    }
}

/// Every topic in the undamaged fixtures.
fn undamaged(fixtures: &[Fixture]) -> BTreeSet<Source> {
    let damaged = |path: &Path| path.ends_with("torn-before") || path.ends_with("flip-before");
    let source = |partition: PathBuf| {
        let parent = partition.parent().unwrap().to_owned();
        let name = partition.file_name().unwrap().to_str().unwrap();
        Source { topic: name.rsplit_once('-').unwrap().0.to_owned(), parent }
    };
    let sources = fixtures.iter().flat_map(Fixture::partitions).map(source);
    sources.filter(|source| !damaged(&source.parent)).collect()
}

/// Parts the sources so that no topic is in one part twice: copies of one topic share its id.
fn parted(sources: BTreeSet<Source>) -> Vec<Vec<Source>> {
    let mut parts: Vec<Vec<Source>> = Vec::new();
    for source in sources {
        match parts.iter_mut().find(|part| part.iter().all(|other| other.topic != source.topic)) {
            Some(part) => part.push(source),
            None => parts.push(vec![source]),
        }
    }
    parts
}

async fn pair() -> (Cluster, Client) {
    let plan = Plan::new().program(1, Program::LeaderSvc).program(2, Program::FollowerAgent);
    let cluster = plan.start().await;
    let client = Client::new(ClientConfig::new(vec![cluster.bootstrap().parse().unwrap()])).unwrap();
    // A topic can have a replica on nodes only that the leader-svc knows.
    wait::until("the agent's registration", wait::SOON, async || {
        (client.describe_cluster().await.ok()?.nodes.len() == 2).then_some(())
    })
    .await;
    (cluster, client)
}

async fn adopt(client: &Client, source: &Source) -> Result<TopicRecord, ClientError> {
    Ok(adopted(client, source).await?.0.record)
}

async fn adopted(
    client: &Client,
    source: &Source,
) -> Result<(DescribedTopic, Vec<AdoptedPartition>), ClientError> {
    let properties = TopicProperties { segment_bytes: SEGMENT_BYTES, ..TopicProperties::default() };
    let request = AdoptTopic {
        name: source.topic.parse().unwrap(),
        directory: source.parent.to_str().unwrap().to_owned(),
        placement: Placement::Nodes([1, 2].map(|node| NodeId::new(node).unwrap()).to_vec()),
        properties,
    };
    client.adopt_topic(&request).await
}

/// Waits until node 2 has acknowledged everything of a topic, and is in sync.
async fn caught_up(client: &Client, source: &Source) {
    let name: TopicName = source.topic.parse().unwrap();
    let partitions = source.partitions().len();
    wait::until(&format!("node 2 to follow {name}"), CAUGHT_UP_WITHIN, async || {
        let look = client.describe_replication(std::slice::from_ref(&name)).await.ok()?;
        assert_eq!(look.unreachable.len(), 0);
        let rows = look.rows;
        let done = rows.iter().all(|row| row.in_sync && row.acknowledged_offset == row.leader_end_offset);
        (rows.len() == partitions && done).then_some(())
    })
    .await;
}

/// The id that Kafka gave to the topic, from a partition's metadata.
fn kafkas_topic_id(partition: &Path) -> Uuid {
    let text = fs::read_to_string(partition.join("partition.metadata")).unwrap();
    let id = text.lines().find_map(|line| line.strip_prefix("topic_id: ")).unwrap();
    Uuid::from_slice(&URL_SAFE_NO_PAD.decode(id).unwrap()).unwrap()
}

/// Every byte of a directory's segments, in order.
fn log_bytes(partition: &Path) -> Bytes {
    let mut logs: Vec<PathBuf> = fs::read_dir(partition)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    logs.sort();
    logs.iter().flat_map(|log| fs::read(log).unwrap()).collect()
}

/// How many segments do not begin where the last batch of the one before them ends.
fn segments_apart(partition: &Path) -> usize {
    let (mut end, mut apart) = (None, 0);
    for segment in log_files::segments(partition) {
        let base = log_files::base_offset(&segment);
        apart += usize::from(end.is_some_and(|end| end != base));
        let bytes = Bytes::from(fs::read(&segment).unwrap());
        end = Some(batches_of(&bytes).last().map_or(base, |last| last.next_offset().get()));
    }
    apart
}

fn batches_of(log: &Bytes) -> Vec<BatchView<'_>> {
    batches(log).map(|batch| batch.unwrap()).collect()
}

/// Where leaderships began, as `leader-epoch-checkpoint` says.
fn epochs_of(partition: &Path) -> Vec<(i32, i64)> {
    let text = fs::read_to_string(partition.join("leader-epoch-checkpoint")).unwrap();
    let entry = |line: &str| {
        let (epoch, start) = line.split_once(' ').unwrap();
        (epoch.parse().unwrap(), start.parse().unwrap())
    };
    text.lines().skip(2).map(entry).collect()
}

/// The entries of `epochs` that hold from `log_start` on.
fn from(epochs: &[(i32, i64)], log_start: i64) -> Vec<(i32, i64)> {
    let ends = epochs.iter().skip(1).map(|(_, start)| *start).chain([i64::MAX]);
    let live = epochs.iter().zip(ends).filter(|(_, end)| *end > log_start);
    live.map(|((epoch, start), _)| (*epoch, (*start).max(log_start))).collect()
}

/// Where leaderships began, as far as batches tell: all that a follower can know.
fn epochs_in(batches: &[&BatchView<'_>], log_start: i64) -> Vec<(i32, i64)> {
    let mut epochs: Vec<(i32, i64)> = batches
        .iter()
        .map(|batch| (batch.leader_epoch().unwrap().get(), batch.base_offset().get().max(log_start)))
        .collect();
    epochs.dedup_by_key(|(epoch, _)| *epoch);
    epochs
}

/// What was seen of all topics: the test knows that it has seen what it is about.
#[derive(Debug, Default)]
struct Seen {
    bytes: usize,
    gaps: usize,
    control: usize,
    codecs: BTreeSet<String>,
    epochs: usize,
    log_starts: usize,
    segments: usize,
}

impl Seen {
    fn note(&mut self, batches: &[BatchView<'_>]) {
        self.bytes += batches.iter().map(|batch| batch.size()).sum::<usize>();
        self.control += batches.iter().filter(|batch| batch.is_control()).count();
        self.codecs.extend(batches.iter().map(|batch| format!("{:?}", batch.compression())));
        let between = batches.windows(2).filter(|pair| pair[0].next_offset() != pair[1].base_offset());
        let within = batches.iter().filter(|batch| {
            i64::from(batch.record_count()) < batch.next_offset().get() - batch.base_offset().get()
        });
        self.gaps += between.count() + within.count();
    }
}

/// Compares one partition: what Kafka wrote, the leader's copy and the follower's.
fn compare(cluster: &Cluster, source: &Source, index: i32, kafkas: &Path, seen: &mut Seen) {
    let name = format!("{}-{index}", source.topic);
    let what = kafkas.display();
    let [leader, follower] = [1, 2].map(|node| cluster.data_dir(node).join(&name));
    let log = log_bytes(kafkas);
    assert_eq!(log_bytes(&leader), log, "{what}: the copy");
    for copy in [&leader, &follower] {
        assert_eq!(segments_apart(copy), 0, "{what}: a missing segment could not be noticed");
        assert_eq!(log_dump::verify(copy), (true, vec![]), "{what}: {}", copy.display());
    }

    // The batch in which the log starts is served as a whole.
    let log_start = source.log_starts().get(&index).copied().unwrap_or(0);
    let batches = batches_of(&log);
    let served: Vec<_> = batches.iter().filter(|batch| batch.next_offset().get() > log_start).collect();
    let skipped = log.len() - served.iter().map(|batch| batch.size()).sum::<usize>();
    assert_eq!(log_bytes(&follower), log.slice(skipped..), "{what}: what the follower wrote");
    log_dump::assert_identical(&[&leader, &follower]);

    let kafkas_epochs = from(&epochs_of(kafkas), log_start);
    let end = batches.last().unwrap().next_offset().get();
    // A leadership without a record gives way to the next one, which begins where it did.
    let mut expected: Vec<_> = kafkas_epochs.iter().copied().filter(|(_, start)| *start < end).collect();
    expected.push((kafkas_epochs.last().unwrap().0 + 1, end));
    assert_eq!(
        from(&epochs_of(&leader), log_start),
        expected,
        "{what}: the history, and one leadership more"
    );
    assert_eq!(from(&epochs_of(&follower), log_start), epochs_in(&served, log_start), "{what}");

    seen.note(&batches);
    seen.epochs = seen.epochs.max(kafkas_epochs.len());
    seen.log_starts += usize::from(log_start > 0);
    let is_log = |entry: &fs::DirEntry| entry.path().extension().is_some_and(|e| e == "log");
    let segments = fs::read_dir(&follower).unwrap().flatten().filter(is_log).count();
    seen.segments = seen.segments.max(segments);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_kafka_wrote_reaches_a_follower_byte_for_byte() {
    let fixtures = ALL.map(Fixture::unpack);
    let mut seen = Seen::default();
    for part in parted(undamaged(&fixtures)) {
        let (cluster, client) = pair().await;
        for source in &part {
            let record = adopt(&client, source).await.unwrap_or_else(|e| panic!("{source:?}: {e}"));
            assert_eq!(record.id.uuid(), kafkas_topic_id(&source.partitions()[0].1), "{source:?}");
        }
        for source in &part {
            caught_up(&client, source).await;
            for (index, kafkas) in source.partitions() {
                compare(&cluster, source, index, &kafkas, &mut seen);
            }
        }
    }
    assert_eq!(seen.codecs.len(), Compression::ALL.len());
    assert!(seen.bytes > 1 << 20 && seen.gaps > 10 && seen.control > 5, "{seen:?}");
    assert!(seen.epochs >= 5 && seen.log_starts >= 4 && seen.segments >= 4, "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_byte_is_refused_as_data_loss_and_leaves_nothing_behind() {
    let fixture = Fixture::unpack("damaged");
    let (cluster, client) = pair().await;
    let source =
        |name: &str| Source { topic: "plain".to_owned(), parent: fixture.root().join("damaged").join(name) };
    let refused = adopt(&client, &source("flip-before")).await.unwrap_err().to_string();
    assert!(refused.contains("DATA_LOSS") || refused.contains("damage"), "{refused}");
    assert!(refused.contains("1441"), "it names the position: {refused}");
    assert!(!cluster.data_dir(1).join("plain-0").exists());
    assert_eq!(client.list_topics().await.unwrap(), []);
    // What Kafka made of it is whole, and takes its place.
    let cured = source("flip-after");
    adopt(&client, &cured).await.unwrap();
    caught_up(&client, &cured).await;
    compare(&cluster, &cured, 0, &cured.partitions()[0].1, &mut Seen::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_torn_tail_is_cut_and_said_to_be_one() {
    let fixture = Fixture::unpack("damaged");
    let (cluster, client) = pair().await;
    let torn = Source { topic: "plain".to_owned(), parent: fixture.root().join("damaged/torn-before") };
    let (_, made) = adopted(&client, &torn).await.unwrap();
    caught_up(&client, &torn).await;
    let kafkas = fs::read(torn.parent.join("plain-0/00000000000000000000.log")).unwrap();
    for node in [1, 2] {
        assert_eq!(log_bytes(&cluster.data_dir(node).join("plain-0")), kafkas[..3663], "node {node}");
    }
    let told: Vec<_> = made.iter().map(|one| (one.partition.get(), one.torn_bytes)).collect();
    assert_eq!(told, [(0, kafkas.len() as u64 - 3663)]);
    let said = cluster.leader(1).output();
    assert!(said.lines().any(|line| line.contains("plain-0") && line.contains("torn tail")), "{said}");
}
