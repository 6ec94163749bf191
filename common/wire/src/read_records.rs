//! ReadRecords: decoded records for people, in both directions.

use bytes::Bytes;
use highwater_proto::v1;
use highwater_protocol::fetch::{DEFAULT_MAX_BYTES, TopicRef};
use highwater_types::{LeaderEpoch, Offset, PartitionIndex, WallTime};

use crate::field::{
    DecodeError, Decoded, decode_partition_index, decode_topic_ref, encode_topic_ref, offset, optional_epoch,
    optional_offset, required,
};

/// Records answered when the request does not say.
pub const DEFAULT_MAX_RECORDS: u32 = 100;
/// The most records that one request may ask for.
pub const MAX_RECORDS: u32 = 10_000;

/// Asks for decoded records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRecordsRequest {
    /// The topic.
    pub topic: TopicRef,
    /// The partition within it.
    pub partition: PartitionIndex,
    /// The first offset wanted; absent = the log start.
    pub from: Option<Offset>,
    /// The most records to answer.
    pub max_records: u32,
    /// The most bytes of batches to read; soft for the first one.
    pub max_bytes: u32,
}

/// Decoded records, with where to read on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRecordsResponse {
    /// The records, by offset.
    pub records: Vec<DecodedRecord>,
    /// Where to read on.
    pub next_offset: Offset,
    /// The first offset in the log.
    pub log_start: Offset,
    /// The high watermark (exclusive).
    pub high_watermark: Offset,
}

/// A record as people read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedRecord {
    /// Its offset.
    pub offset: Offset,
    /// The leader epoch in which it was appended; absent where its batch has none.
    pub leader_epoch: Option<LeaderEpoch>,
    /// Its time.
    pub timestamp: WallTime,
    /// Its key; absent = null.
    pub key: Option<Bytes>,
    /// Its value; absent = null.
    pub value: Option<Bytes>,
    /// Its headers, in order; an absent value = null.
    pub headers: Vec<(String, Option<Bytes>)>,
    /// The producer, where its batch has one.
    pub producer: Option<ProducerPosition>,
    /// Whether it belongs to a transaction.
    pub transactional: bool,
    /// What a control record says; absent for others.
    pub control: Option<String>,
}

/// Who produced a record, and as which of its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerPosition {
    /// The producer's id.
    pub id: i64,
    /// The producer's epoch.
    pub epoch: i16,
    /// The record's number.
    pub sequence: i32,
}

/// Reads a request.
///
/// # Errors
/// The field that is not valid.
pub fn decode_request(message: &v1::ReadRecordsRequest) -> Decoded<ReadRecordsRequest> {
    let max_records = message.max_records.unwrap_or(DEFAULT_MAX_RECORDS);
    if !(1..=MAX_RECORDS).contains(&max_records) {
        let problem = format!("{max_records}: 1 to {MAX_RECORDS} is allowed");
        return Err(DecodeError::invalid("max_records", problem));
    }
    Ok(ReadRecordsRequest {
        topic: decode_topic_ref(&message.topic, &message.topic_id)?,
        partition: decode_partition_index(message.partition)?,
        from: optional_offset("offset", message.offset)?,
        max_records,
        max_bytes: message.max_bytes.unwrap_or(DEFAULT_MAX_BYTES),
    })
}

/// The request on the wire.
#[must_use]
pub fn encode_request(request: &ReadRecordsRequest) -> v1::ReadRecordsRequest {
    let (topic, topic_id) = encode_topic_ref(&request.topic);
    v1::ReadRecordsRequest {
        topic,
        topic_id,
        partition: Some(request.partition.get()),
        offset: request.from.map(Offset::get),
        max_records: Some(request.max_records),
        max_bytes: Some(request.max_bytes),
    }
}

/// The answer on the wire; keys and values that are UTF-8 also travel as text.
#[must_use]
pub fn encode_response(response: ReadRecordsResponse) -> v1::ReadRecordsResponse {
    v1::ReadRecordsResponse {
        records: response.records.into_iter().map(encode_record).collect(),
        next_offset: Some(response.next_offset.get()),
        log_start_offset: Some(response.log_start.get()),
        high_watermark: Some(response.high_watermark.get()),
    }
}

fn encode_record(record: DecodedRecord) -> v1::DecodedRecord {
    let text = |bytes: &Option<Bytes>| {
        bytes.as_ref().and_then(|bytes| std::str::from_utf8(bytes).ok()).map(str::to_owned)
    };
    let header = |(key, value)| v1::RecordHeader { key, value };
    v1::DecodedRecord {
        offset: Some(record.offset.get()),
        leader_epoch: record.leader_epoch.map(|epoch| epoch.get()),
        timestamp_ms: Some(record.timestamp.as_millis()),
        key_text: text(&record.key),
        value_text: text(&record.value),
        key: record.key,
        value: record.value,
        headers: record.headers.into_iter().map(header).collect(),
        producer_id: record.producer.map(|producer| producer.id),
        producer_epoch: record.producer.map(|producer| producer.epoch.into()),
        sequence: record.producer.map(|producer| producer.sequence),
        transactional: record.transactional,
        control: record.control,
    }
}

/// Reads an answer.
///
/// # Errors
/// The field that is missing or not valid.
pub fn decode_response(message: v1::ReadRecordsResponse) -> Decoded<ReadRecordsResponse> {
    let record = |(index, record): (usize, v1::DecodedRecord)| {
        decode_record(record).map_err(|e| e.within("records", index))
    };
    Ok(ReadRecordsResponse {
        records: message.records.into_iter().enumerate().map(record).collect::<Decoded<_>>()?,
        next_offset: offset("next_offset", message.next_offset)?,
        log_start: offset("log_start_offset", message.log_start_offset)?,
        high_watermark: offset("high_watermark", message.high_watermark)?,
    })
}

fn decode_record(message: v1::DecodedRecord) -> Decoded<DecodedRecord> {
    let epoch = |raw: i32| {
        i16::try_from(raw).map_err(|_| DecodeError::invalid("producer_epoch", format!("{raw} is too large")))
    };
    let producer = match (message.producer_id, message.producer_epoch, message.sequence) {
        (Some(id), Some(raw), Some(sequence)) => Some(ProducerPosition { id, epoch: epoch(raw)?, sequence }),
        _ => None,
    };
    Ok(DecodedRecord {
        offset: offset("offset", message.offset)?,
        leader_epoch: optional_epoch("leader_epoch", message.leader_epoch)?,
        timestamp: WallTime::from_millis(required("timestamp_ms", message.timestamp_ms)?),
        key: message.key,
        value: message.value,
        headers: message.headers.into_iter().map(|header| (header.key, header.value)).collect(),
        producer,
        transactional: message.transactional,
        control: message.control,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(value: Option<Bytes>) -> DecodedRecord {
        DecodedRecord {
            offset: Offset::ZERO,
            leader_epoch: Some(LeaderEpoch::FIRST),
            timestamp: WallTime::from_millis(0),
            key: None,
            value,
            headers: vec![("trace".into(), Some(Bytes::from_static(b"\xff"))), ("none".into(), None)],
            producer: Some(ProducerPosition { id: 0, epoch: 0, sequence: 0 }),
            transactional: true,
            control: Some("COMMIT".into()),
        }
    }

    #[test]
    fn records_survive_the_wire_and_text_is_there_exactly_when_it_is_utf8() {
        let values =
            [None, Some(Bytes::new()), Some(Bytes::from("größe")), Some(Bytes::from_static(b"\xc3\x28"))];
        let response = ReadRecordsResponse {
            records: values.into_iter().map(record).collect(),
            next_offset: Offset::ZERO,
            log_start: Offset::ZERO,
            high_watermark: Offset::ZERO,
        };
        let message = encode_response(response.clone());
        let texts: Vec<_> = message.records.iter().map(|r| r.value_text.as_deref()).collect();
        assert_eq!(texts, [None, Some(""), Some("größe"), None]);
        assert_eq!(decode_response(message), Ok(response));
    }

    #[test]
    fn a_request_has_defaults_and_bounds() {
        let mut message =
            v1::ReadRecordsRequest { topic: "a".into(), partition: Some(0), ..Default::default() };
        let request = decode_request(&message).unwrap();
        assert_eq!((request.from, request.max_records, request.max_bytes), (None, 100, 1 << 20));
        assert_eq!(decode_request(&encode_request(&request)), Ok(request));
        for wrong in [0, MAX_RECORDS + 1] {
            message.max_records = Some(wrong);
            assert_eq!(decode_request(&message).unwrap_err().path(), "max_records");
        }
        message.max_records = None;
        message.offset = Some(-5);
        assert_eq!(decode_request(&message).unwrap_err().path(), "offset");
    }
}
