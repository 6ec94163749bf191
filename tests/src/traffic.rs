//! Plain traffic whose outcome a [`History`] keeps: records one by one with `acks=all`, and everything that can be read.
//!
//! What must hold: no retries and no batching, so that what a producer was told about a record is one answer or none.
//! Deliberately absent: the client library, which hides exactly that.

use highwater_proto::v1;
use highwater_proto::v1::log_service_client::LogServiceClient;
use highwater_records::{batches, decode_records};
use tonic::transport::Channel;

use crate::history::{History, Outcome, ReadRecord};

/// Answers may be large: a log is read in few of them.
const ANSWER_BYTES_MAX: u32 = 16 << 20;

/// A record as it was read, for [`ReadRecord`].
#[derive(Debug)]
pub struct Read {
    offset: i64,
    epoch: i32,
    value: Vec<u8>,
}

impl Read {
    /// The same, for a [`History`].
    #[must_use]
    pub fn as_record(&self) -> ReadRecord<'_> {
        ReadRecord { offset: self.offset, epoch: self.epoch, value: &self.value }
    }
}

/// The records of an answer to a consumer.
#[derive(Debug)]
pub struct Answered {
    /// From the offset on that was asked for.
    pub records: Vec<Read>,
    /// Where reading goes on.
    pub end: i64,
}

impl Answered {
    /// Decodes what was answered to who asked `from` an offset on.
    ///
    /// # Errors
    /// What is wrong with the batches.
    pub fn decode(bytes: &[u8], from: i64) -> Result<Self, String> {
        let (mut records, mut end) = (Vec::new(), from);
        for batch in batches(bytes) {
            let batch = batch.map_err(|error| format!("at {end}: {error}"))?;
            if !batch.crc_ok() {
                return Err(format!("the CRC at {} is wrong", batch.base_offset()));
            }
            let epoch = batch.leader_epoch().map_or(-1, |epoch| epoch.get());
            let decoded = decode_records(&batch).map_err(|error| error.to_string())?;
            let read = decoded.into_iter().map(|record| Read {
                offset: record.offset.get(),
                epoch,
                value: record.value.map(Vec::from).unwrap_or_default(),
            });
            // A batch is answered whole, also when it begins before the offset that was asked for.
            records.extend(read.filter(|record| record.offset >= from));
            end = batch.next_offset().get();
        }
        Ok(Self { records, end })
    }
}

/// One partition, reached through one server.
#[derive(Debug, Clone)]
pub struct Traffic {
    client: LogServiceClient<Channel>,
    topic: String,
    partition: i32,
}

impl Traffic {
    /// Traffic for a partition over a connection.
    #[must_use]
    pub fn new(channel: Channel, topic: &str, partition: i32) -> Self {
        let client = LogServiceClient::new(channel).max_decoding_message_size(2 * ANSWER_BYTES_MAX as usize);
        Self { client, topic: topic.to_owned(), partition }
    }

    fn name(&self) -> String {
        format!("{}-{}", self.topic, self.partition)
    }

    /// Produces one record with `acks=all` and notes in the history what became of it.
    pub async fn produce(&mut self, history: &History, value: &str) -> Outcome {
        let record = v1::PlainRecord {
            value: Some(v1::plain_record::Value::ValueText(value.to_owned())),
            ..Default::default()
        };
        let partition = v1::ProducePartition {
            topic: self.topic.clone(),
            partition: Some(self.partition),
            plain_records: vec![record],
            ..Default::default()
        };
        let request = v1::ProduceRequest {
            acks: v1::Acks::All.into(),
            partitions: vec![partition],
            ..Default::default()
        };
        history.attempt(&self.name(), value.as_bytes());
        let outcome = match self.client.produce(request).await {
            Ok(answer) => outcome(answer.into_inner()),
            Err(_) => Outcome::Unknown,
        };
        if outcome != Outcome::Unknown {
            history.outcome(&self.name(), value.as_bytes(), outcome);
        }
        outcome
    }

    /// Produces `name-0`, `name-1`, … one after the other until one is not acknowledged; says how many were.
    pub async fn produce_until_refused(&mut self, history: &History, name: &str) -> u64 {
        let mut acknowledged = 0;
        while let Outcome::Acknowledged(_) = self.produce(history, &format!("{name}-{acknowledged}")).await {
            acknowledged += 1;
        }
        acknowledged
    }

    /// Reads from the start to where a consumer may, notes it in the history, and returns the end that was reached.
    ///
    /// # Panics
    /// When the server does not answer, or what it answers is not whole batches.
    pub async fn read_all(&mut self, history: &History) -> i64 {
        let (records, end) = self.read_whole().await;
        history.read(&self.name(), records.iter().map(Read::as_record));
        end
    }

    /// The same when nothing is appended any more: what anybody has read is there.
    ///
    /// # Panics
    /// As [`Traffic::read_all`].
    pub async fn read_last(&mut self, history: &History) -> i64 {
        let (records, end) = self.read_whole().await;
        history.read_last(&self.name(), records.iter().map(Read::as_record));
        end
    }

    async fn read_whole(&mut self) -> (Vec<Read>, i64) {
        let (mut next, mut all) = (self.earliest().await, Vec::new());
        loop {
            let answer = self.fetch(next).await;
            let Answered { records, end } = Answered::decode(&answer.records, next)
                .unwrap_or_else(|problem| panic!("{}: {problem}", self.name()));
            if end == next {
                assert_eq!(
                    Some(next),
                    answer.high_watermark,
                    "{}: a consumer can read up to the high watermark",
                    self.name()
                );
                return (all, end);
            }
            all.extend(records);
            next = end;
        }
    }

    async fn earliest(&mut self) -> i64 {
        let partition = v1::ListOffsetsPartition {
            topic: self.topic.clone(),
            partition: Some(self.partition),
            position: v1::OffsetPosition::Earliest.into(),
            ..Default::default()
        };
        let request = v1::ListOffsetsRequest { partitions: vec![partition], ..Default::default() };
        let answer = self.client.list_offsets(request).await.expect("the server answers").into_inner();
        let result = answer.partitions.into_iter().next().expect("one partition was asked for");
        result.offset.unwrap_or_else(|| panic!("{}: {:?}", self.name(), result.error))
    }

    async fn fetch(&mut self, offset: i64) -> v1::FetchPartitionResult {
        let partition = v1::FetchPartition {
            topic: self.topic.clone(),
            partition: Some(self.partition),
            fetch_offset: Some(offset),
            ..Default::default()
        };
        let request = v1::FetchRequest {
            max_wait_ms: Some(0),
            max_bytes: Some(ANSWER_BYTES_MAX),
            partitions: vec![partition],
            ..Default::default()
        };
        let answer = self.client.fetch(request).await.expect("the server answers").into_inner();
        let result = answer.partitions.into_iter().next().expect("one partition was asked for");
        assert!(result.error.is_none(), "{} from {offset}: {:?}", self.name(), result.error);
        result
    }
}

/// What an answer says. Any error leaves it open: the record may be in the log although it was not acknowledged.
fn outcome(answer: v1::ProduceResponse) -> Outcome {
    let result = answer.partitions.into_iter().next().expect("one partition was produced to");
    match (result.error, result.base_offset) {
        (None, Some(offset)) => Outcome::Acknowledged(offset),
        (Some(_), _) | (None, None) => Outcome::Unknown,
    }
}
