//! Logs for the fake leader: it answers from them as a real leader that behaves would, unless a test puts something between.
//!
//! What must hold: an answer follows the rules of cases.md 1 and 2 (out of range before divergence, divergence before
//! records) and KIP-74 (a first batch passes whole). Deliberately absent: parking until news comes, deadlines, sessions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use highwater_proto::v1;
use highwater_records::{BatchBuilder, BatchView, Compression};
use highwater_types::{LeaderEpoch, Offset, TopicId, WallTime};

use crate::fake_leader::{Answer, FakeLeader, answer_for, nothing_new};

/// What a request that says no limit gets of one partition.
const PARTITION_BYTES: usize = 1 << 20;

/// The log of one partition of a fake leader.
#[derive(Debug, Clone, Default)]
pub struct FakeLog {
    log_start: i64,
    end: i64,
    batches: Vec<Stored>,
    /// How far it is committed, at most; by default to the end.
    committed: Option<i64>,
    /// Each epoch and where it starts.
    epochs: Vec<(i32, i64)>,
}

#[derive(Debug, Clone)]
struct Stored {
    next: i64,
    bytes: Bytes,
}

impl FakeLog {
    /// An empty log that begins at an offset.
    #[must_use]
    pub fn starting_at(offset: i64) -> Self {
        Self { log_start: offset, end: offset, ..Self::default() }
    }

    /// Appends a batch with these values in an epoch.
    #[must_use]
    pub fn batch(self, epoch: i32, values: &[&[u8]]) -> Self {
        let base = Offset::new(self.end).expect("an offset");
        let epoch = LeaderEpoch::new(epoch).expect("an epoch");
        let mut builder = BatchBuilder::new(Compression::None).base_offset(base).leader_epoch(epoch);
        for value in values {
            builder.append(WallTime::from_millis(1000), None, Some(value), &[]).expect("a small batch");
        }
        self.raw(builder.build().expect("a batch has records").freeze())
    }

    /// Appends so many batches of one record with a value of `size` bytes.
    #[must_use]
    pub fn batches(self, epoch: i32, count: usize, size: usize) -> Self {
        (0..count).fold(self, |log, n| {
            let fill = u8::try_from(n % 251).expect("below 251");
            log.batch(epoch, &[&vec![fill; size]])
        })
    }

    /// Appends a batch as it is; it may lie beyond the end.
    ///
    /// # Panics
    /// When the bytes are no batch.
    #[must_use]
    pub fn raw(mut self, bytes: Bytes) -> Self {
        let batch = BatchView::parse(&bytes).expect("a whole batch");
        let (base, next) = (batch.base_offset().get(), batch.next_offset().get());
        let epoch = batch.leader_epoch().expect("a leader stamps its batches").get();
        assert!(base >= self.end, "a log only grows at its end");
        if self.epochs.last().is_none_or(|(last, _)| *last < epoch) {
            self.epochs.push((epoch, base));
        }
        self.end = next;
        self.batches.push(Stored { next, bytes });
        self
    }

    /// The same log, of which nothing from `offset` on is committed.
    #[must_use]
    pub fn committed_to(mut self, offset: i64) -> Self {
        self.committed = Some(offset);
        self
    }

    fn high_watermark(&self) -> i64 {
        self.committed.map_or(self.end, |offset| offset.min(self.end))
    }

    /// The offset after the last record.
    #[must_use]
    pub fn end(&self) -> i64 {
        self.end
    }

    /// All its bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.batches.iter().flat_map(|batch| batch.bytes.iter().copied()).collect()
    }

    /// The answer to a partition of a Fetch, with records from `room` bytes, and a first batch of any size.
    #[must_use]
    pub fn answer(&self, asked: &v1::FetchPartition, room: usize) -> v1::FetchPartitionResult {
        let from = asked.fetch_offset.expect("a follower says where it reads");
        let mut result = v1::FetchPartitionResult {
            log_start_offset: Some(self.log_start),
            high_watermark: Some(self.high_watermark()),
            log_end_offset: Some(self.end),
            ..answer_for(asked)
        };
        if from < self.log_start || (from > self.end && asked.last_fetched_epoch.is_none()) {
            result.error = Some(error(v1::ErrorCode::OffsetOutOfRange));
            return result;
        }
        let diverging = asked.last_fetched_epoch.map(|epoch| (epoch, self.end_of(epoch)));
        if let Some((epoch, (known, end))) = diverging
            && (known < epoch || end < from)
        {
            result.diverging_epoch =
                Some(v1::DivergingEpoch { leader_epoch: Some(known), end_offset: Some(end) });
            return result;
        }
        let limit = asked.partition_max_bytes.map_or(PARTITION_BYTES, |bytes| bytes as usize).min(room);
        let mut records = Vec::new();
        for batch in self.batches.iter().filter(|batch| batch.next > from) {
            if !records.is_empty() && records.len() + batch.bytes.len() > limit {
                break;
            }
            records.extend_from_slice(&batch.bytes);
        }
        result.records = records.into();
        result
    }

    /// Where an epoch ends, by the rule for followers that ask; an epoch below the first ends where the log starts.
    fn end_of(&self, epoch: i32) -> (i32, i64) {
        let known =
            self.epochs.iter().rev().find(|(known, _)| *known <= epoch).map_or(epoch, |(known, _)| *known);
        let next = self.epochs.iter().find(|(known, _)| *known > epoch);
        (known, next.map_or(self.end, |(_, start)| *start))
    }
}

/// The logs of a topic of a fake leader, which can be changed while it answers.
#[derive(Debug, Clone, Default)]
pub struct FakeLogs(Arc<Mutex<BTreeMap<i32, FakeLog>>>);

impl FakeLogs {
    /// Puts a log in the place of a partition's.
    pub fn set(&self, partition: i32, log: FakeLog) {
        self.lock().insert(partition, log);
    }

    /// A partition's log.
    #[must_use]
    pub fn get(&self, partition: i32) -> FakeLog {
        self.lock().get(&partition).cloned().unwrap_or_default()
    }

    /// Lets the fake answer Fetch and ListOffsets for the topic from these logs.
    pub fn serve(&self, fake: &FakeLeader, topic: TopicId) {
        let (topic, logs) = (topic.to_string(), self.clone());
        let named = topic.clone();
        fake.on_fetch(move |request, _| logs.fetch(&named, request));
        let logs = self.clone();
        fake.on_offsets(move |request, _| Some(Answer::Give(logs.offsets(&topic, request))));
    }

    /// The answer to a Fetch; `None` when there is no news for its follower.
    #[must_use]
    pub fn fetch(&self, topic: &str, request: &v1::FetchRequest) -> Option<Answer<v1::FetchResponse>> {
        let logs = self.lock();
        let only_acknowledges = request.max_bytes == Some(0);
        let mut room = request.max_bytes.map_or(PARTITION_BYTES, |bytes| bytes as usize);
        let mut answer = nothing_new(request);
        let mut is_news = false;
        for (asked, result) in request.partitions.iter().zip(&mut answer.partitions) {
            let log = asked.partition.and_then(|partition| logs.get(&partition));
            let Some(log) = log.filter(|_| asked.topic_id == topic) else { continue };
            *result = log.answer(asked, room);
            if only_acknowledges || asked.paused || (room == 0 && !result.records.is_empty()) {
                result.records = Bytes::new();
            }
            room = room.saturating_sub(result.records.len());
            is_news |= !result.records.is_empty()
                || result.error.is_some()
                || result.diverging_epoch.is_some()
                || (result.high_watermark > asked.high_watermark
                    && asked.acknowledged_offset.or(asked.fetch_offset) >= result.high_watermark);
        }
        is_news.then_some(Answer::Give(answer))
    }

    fn offsets(&self, topic: &str, request: &v1::ListOffsetsRequest) -> v1::ListOffsetsResponse {
        let logs = self.lock();
        let results = request.partitions.iter().map(|asked| {
            let log = asked.partition.and_then(|partition| logs.get(&partition));
            let log = log.filter(|_| asked.topic_id == topic);
            let offset = log.map(|log| match asked.position() {
                v1::OffsetPosition::Earliest => log.log_start,
                v1::OffsetPosition::Latest | v1::OffsetPosition::Unspecified => log.end,
            });
            v1::ListOffsetsPartitionResult {
                topic: asked.topic.clone(),
                topic_id: asked.topic_id.clone(),
                partition: asked.partition,
                error: offset.is_none().then(|| error(v1::ErrorCode::UnknownTopicId)),
                offset,
                ..Default::default()
            }
        });
        v1::ListOffsetsResponse { partitions: results.collect() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<i32, FakeLog>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An error of a partition.
#[must_use]
pub fn error(code: v1::ErrorCode) -> v1::PartitionError {
    v1::PartitionError { code: code.into(), message: "as the test wants it".to_owned(), ..Default::default() }
}
