//! `highwater lag`: how far every follower is, as the leaders know it: DescribeReplication over all nodes.
//!
//! What holds: where nobody leads, the followers' agents are asked what they hold and why they do not fetch. A node that cannot
//! be asked is named, and then one look ends with exit code 1, since it is not the whole
//! picture. Watching goes on over every failure once the first look succeeded; as text it refreshes in place on a terminal,
//! and otherwise writes one table after the other, each under its time.

mod screen;
mod table;

use std::io::{IsTerminal as _, Write};
use std::time::{Duration, SystemTime};

use clap::Args;
use highwater_client::describe::{LeaderlessRow, ReplicaRow, ReplicationView};
use highwater_client::{Client, ClientError};
use highwater_types::{TopicName, units};
use serde::Serialize;

use crate::connection::{ASK_TIMEOUT, ConnectionArgs};
use crate::outcome::{CommandError, Verdict};
use crate::output::{OutputArgs, OutputFormat, json_line};

/// Shows lag.
#[derive(Args, Debug)]
pub(crate) struct LagArgs {
    /// The topics; without any, all.
    topics: Vec<TopicName>,
    /// Looks again and again, until it is interrupted.
    #[arg(long)]
    watch: bool,
    /// How long --watch waits between two looks, for example 500ms.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

fn interval(text: &str) -> Result<Duration, String> {
    /// Shorter is more than anyone can read.
    const SHORTEST: Duration = Duration::from_millis(50);
    let span = units::parse_duration(text)?;
    if span < SHORTEST { Err("at least 50ms is needed".to_owned()) } else { Ok(span) }
}

/// How a look is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// The only one.
    Table,
    /// One of several, below the ones before.
    TableUnderItsTime,
    /// In the place of the one before, on a terminal.
    InPlace,
    Json,
}

impl Form {
    fn of(args: &LagArgs, on_terminal: bool) -> Self {
        match (args.output.output, args.watch) {
            (OutputFormat::Json, _) => Self::Json,
            (OutputFormat::Text, false) => Self::Table,
            (OutputFormat::Text, true) if on_terminal => Self::InPlace,
            (OutputFormat::Text, true) => Self::TableUnderItsTime,
        }
    }
}

/// A line of the JSON output.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line<'a> {
    Replica {
        /// When the look began, RFC 3339.
        at: &'a str,
        #[serde(flatten)]
        row: &'a ReplicaRow,
    },
    /// Nobody leads its partition.
    Leaderless {
        at: &'a str,
        #[serde(flatten)]
        row: &'a LeaderlessRow,
    },
    Unreachable {
        at: &'a str,
        /// Absent: no node of the cluster could be asked.
        #[serde(skip_serializing_if = "Option::is_none")]
        node: Option<i32>,
        error: String,
    },
}

/// Carries the command out.
///
/// # Errors
/// [`CommandError`] when no node can be asked which nodes there are, and none that was named is an agent that tells why.
pub(crate) async fn run(args: &LagArgs, out: &mut dyn Write) -> Result<Verdict, CommandError> {
    let client = args.connection.client(ASK_TIMEOUT)?;
    let failed = |e| CommandError::cluster("describe replication", e);
    let form = Form::of(args, std::io::stdout().is_terminal());
    let first = client.describe_replication(&args.topics).await.map_err(failed)?;
    if form == Form::InPlace {
        screen::clear(out)?;
    }
    let is_whole = first.unreachable.is_empty() && first.cluster_unknown.is_none();
    let verdict = if is_whole { Verdict::Good } else { Verdict::Wrong };
    show(&Ok(first), form, out)?;
    if !args.watch {
        return Ok(verdict);
    }
    tokio::select! {
        done = watch(&client, args, form, out) => done,
        _ = tokio::signal::ctrl_c() => Ok(Verdict::Good),
    }
}

async fn watch(
    client: &Client,
    args: &LagArgs,
    form: Form,
    out: &mut dyn Write,
) -> Result<Verdict, CommandError> {
    loop {
        tokio::time::sleep(args.interval).await;
        let look = client.describe_replication(&args.topics).await;
        show(&look, form, out)?;
    }
}

fn show(
    look: &Result<ReplicationView, ClientError>,
    form: Form,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let at = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
    let mut lines = match look {
        Ok(look) => table::lines(look),
        Err(error) => vec![format!("cannot describe replication: {error}")],
    };
    if matches!(form, Form::TableUnderItsTime | Form::InPlace) {
        lines.insert(0, at.clone());
    }
    match form {
        Form::Json => show_json(look, &at, out)?,
        Form::InPlace => screen::draw(&lines, out)?,
        Form::Table | Form::TableUnderItsTime => lines.iter().try_for_each(|line| writeln!(out, "{line}"))?,
    }
    Ok(out.flush()?)
}

fn show_json(
    look: &Result<ReplicationView, ClientError>,
    at: &str,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    match look {
        Ok(look) => {
            for row in &look.rows {
                json_line(out, &Line::Replica { at, row })?;
            }
            for row in &look.leaderless {
                json_line(out, &Line::Leaderless { at, row })?;
            }
            for (node, error) in &look.unreachable {
                let (node, error) = (Some(node.get()), error.to_string());
                json_line(out, &Line::Unreachable { at, node, error })?;
            }
            if let Some(error) = &look.cluster_unknown {
                json_line(out, &Line::Unreachable { at, node: None, error: error.to_string() })?;
            }
            Ok(())
        }
        Err(error) => json_line(out, &Line::Unreachable { at, node: None, error: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use highwater_types::NodeId;

    use super::*;

    #[test]
    fn json_lines_tell_rows_from_nodes_that_cannot_be_asked() {
        let row = table::tests::row();
        let unreachable = BTreeMap::from([(NodeId::new(3).unwrap(), ClientError::Closed)]);
        let mut out = Vec::new();
        let look = ReplicationView {
            rows: vec![row],
            leaderless: vec![table::tests::leaderless()],
            unreachable,
            cluster_unknown: None,
        };
        show_json(&Ok(look), "now", &mut out).unwrap();
        show_json(&Err(ClientError::Closed), "later", &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&lines[0]["type"], &lines[0]["at"]), (&"replica".into(), &"now".into()));
        assert_eq!((&lines[0]["replica"], &lines[0]["lag_records"]), (&2.into(), &1234.into()));
        assert_eq!((&lines[1]["type"], &lines[1]["leader_state"]), (&"leaderless".into(), &"dead".into()));
        assert_eq!(lines[2], serde_json::json!({"type":"unreachable","at":"now","node":3,"error":"closed"}));
        assert_eq!(lines[3], serde_json::json!({"type":"unreachable","at":"later","error":"closed"}));
    }
}
