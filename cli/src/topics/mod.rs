//! `highwater topics`: creates, lists, describes, deletes, and adopts topics.

mod view;
mod wait;

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use highwater_client::{AdoptTopic, CreateTopic, DescribedTopic, Losses, Placement, TopicRef};
use highwater_types::{NodeId, TopicName, TopicProperties, units};
use tokio::time::Instant;

use self::view::{TopicDetail, TopicSummary, print_detail, print_list};
use crate::connection::{ASK_TIMEOUT, ConnectionArgs};
use crate::figures::counted;
use crate::outcome::CommandError;
use crate::output::{OutputArgs, OutputFormat, json_line};

/// Creates and shows topics.
#[derive(Debug, Subcommand)]
pub(crate) enum TopicsCommand {
    /// Creates a topic.
    Create(CreateArgs),
    /// Lists all topics.
    List(ListArgs),
    /// Shows leaders, epochs, in-sync sets and properties of one topic, or of all.
    Describe(DescribeArgs),
    /// Deletes a topic and its data on every node.
    Delete(DeleteArgs),
    /// Creates a topic over existing log directories, of Highwater or of Kafka; they are copied.
    Adopt(AdoptArgs),
}

/// Who gets replicas.
#[derive(Args, Debug)]
struct PlacementArgs {
    /// The nodes that get a replica of every partition; the preferred leader moves on by one with each partition.
    #[arg(long, value_delimiter = ',', value_name = "NODE[,NODE]", conflicts_with = "replication_factor")]
    replicas: Vec<NodeId>,
    /// On how many nodes each partition has a replica; the answering node chooses which. Without it and --replicas: 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    replication_factor: Option<u8>,
}

impl PlacementArgs {
    fn placement(&self) -> Placement {
        if self.replicas.is_empty() {
            Placement::Factor(self.replication_factor.map_or(1, usize::from))
        } else {
            Placement::Nodes(self.replicas.clone())
        }
    }
}

/// The properties of a new topic.
#[derive(Args, Debug)]
pub(crate) struct PropertyArgs {
    /// A property of the topic, for example durability=page-cache; may be given several times.
    #[arg(long = "property", value_name = "NAME=VALUE", value_parser = name_and_value)]
    properties: Vec<(String, String)>,
}

impl PropertyArgs {
    /// Whether this property is given.
    pub(crate) fn names(&self, property: &str) -> bool {
        self.properties.iter().any(|(name, _)| name == property)
    }

    /// All properties; those that are not given have their defaults.
    pub(crate) fn properties(&self) -> Result<TopicProperties, CommandError> {
        let mut properties = TopicProperties::default();
        for (name, value) in &self.properties {
            properties.set(name, value).map_err(CommandError::Usage)?;
        }
        Ok(properties)
    }
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE is needed")?;
    Ok((name.to_owned(), value.to_owned()))
}

#[derive(Args, Debug)]
pub(crate) struct CreateArgs {
    /// The topic's name.
    name: TopicName,
    /// How many partitions it gets.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    partitions: i32,
    #[command(flatten)]
    placement: PlacementArgs,
    #[command(flatten)]
    properties: PropertyArgs,
    /// Waits at most so long, for example 5m, until the cluster answers and knows the nodes, and then until the new topic
    /// takes records: every partition led, min.insync.replicas in sync.
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    wait: Option<Duration>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Args, Debug)]
pub(crate) struct DescribeArgs {
    /// The topic's name; without it all topics.
    name: Option<TopicName>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Args, Debug)]
pub(crate) struct DeleteArgs {
    /// The topic's name.
    name: TopicName,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Args, Debug)]
pub(crate) struct AdoptArgs {
    /// The topic's name: NAME in the directories' names NAME-N.
    name: TopicName,
    /// A directory on the answering node that holds the directories NAME-N.
    directory: String,
    #[command(flatten)]
    placement: PlacementArgs,
    #[command(flatten)]
    properties: PropertyArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

impl TopicsCommand {
    /// Carries the command out.
    ///
    /// # Errors
    /// [`CommandError`].
    pub(crate) async fn run(&self, out: &mut dyn Write) -> Result<(), CommandError> {
        match self {
            Self::Create(args) => create(args, out).await,
            Self::List(args) => list(args, out).await,
            Self::Describe(args) => describe(args, out).await,
            Self::Delete(args) => delete(args, out).await,
            Self::Adopt(args) => adopt(args, out).await,
        }
    }
}

async fn create(args: &CreateArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let topic = CreateTopic {
        name: args.name.clone(),
        partitions: args.partitions,
        placement: args.placement.placement(),
        properties: args.properties.properties()?,
    };
    let client = args.connection.client(ASK_TIMEOUT)?;
    let until = args.wait.map(|wait| Instant::now() + wait);
    if let Some(until) = until {
        wait::for_nodes(&client, &topic, until).await?;
    }
    let created = client.create_topic(&topic).await;
    let created = created.map_err(|e| CommandError::cluster(format!("create topic {}", args.name), e))?;
    if let Some(until) = until {
        wait::until_writable(&client, &created, until).await?;
    }
    confirm("created", &created, args.output, out)
}

async fn adopt(args: &AdoptArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let topic = AdoptTopic {
        name: args.name.clone(),
        directory: args.directory.clone(),
        placement: args.placement.placement(),
        properties: args.properties.properties()?,
    };
    let client = args.connection.client(ADOPT_TIMEOUT)?;
    let adopted = client.adopt_topic(&topic).await;
    let (adopted, partitions) = adopted
        .map_err(|e| CommandError::cluster(format!("adopt {} as topic {}", args.directory, args.name), e))?;
    confirm("adopted", &adopted, args.output, out)?;
    for made in partitions.iter().filter(|made| made.torn_bytes > 0) {
        let (partition, torn, end) = (made.partition, counted(made.torn_bytes, "byte"), made.log_end);
        // On standard error, whatever the output: it is no row, and not to be missed.
        // That nobody listens there is no failure.
        _ = writeln!(
            io::stderr(),
            "partition {partition}: left {torn} out at the end, a torn tail; the log ends at {end}"
        );
    }
    Ok(())
}

/// Adoption copies and checks every batch.
const ADOPT_TIMEOUT: Duration = Duration::from_secs(600);

fn confirm(
    done: &str,
    topic: &DescribedTopic,
    output: OutputArgs,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    match output.output {
        OutputFormat::Json => json_line(out, &TopicDetail::of(topic, &None, &Losses::new()))?,
        OutputFormat::Text => {
            let partitions = u64::try_from(topic.record.partitions).unwrap_or(0);
            let (name, id) = (&topic.record.name, topic.record.id);
            writeln!(out, "{done} topic {name} ({id}) with {}", counted(partitions, "partition"))?;
        }
    }
    Ok(())
}

async fn list(args: &ListArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let client = args.connection.client(ASK_TIMEOUT)?;
    let topics = client.list_topics().await.map_err(|e| CommandError::cluster("list topics", e))?;
    let topics: Vec<_> = topics.iter().map(TopicSummary::of).collect();
    match args.output.output {
        OutputFormat::Json => topics.iter().try_for_each(|topic| json_line(out, topic))?,
        OutputFormat::Text => print_list(&topics, out)?,
    }
    Ok(())
}

async fn describe(args: &DescribeArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let client = args.connection.client(ASK_TIMEOUT)?;
    let topics = match &args.name {
        Some(name) => {
            let described = client.describe_topic(name).await;
            let described =
                described.map_err(|e| CommandError::cluster(format!("describe topic {name}"), e))?;
            vec![Arc::unwrap_or_clone(described)]
        }
        None => {
            let described = client.list_topics().await;
            described.map_err(|e| CommandError::cluster("describe topics", e))?
        }
    };
    // A node that cannot renew its session tells the topics all the same.
    let (live, losses) = match client.describe_cluster().await {
        Ok(cluster) => {
            let losses = client.describe_losses(&cluster, &topics).await;
            (Some(cluster.live), losses)
        }
        Err(_) => (None, Losses::new()),
    };
    let topics: Vec<_> = topics.iter().map(|topic| TopicDetail::of(topic, &live, &losses)).collect();
    match args.output.output {
        OutputFormat::Json => topics.iter().try_for_each(|topic| json_line(out, topic))?,
        OutputFormat::Text => {
            for (index, topic) in topics.iter().enumerate() {
                if index > 0 {
                    writeln!(out)?;
                }
                print_detail(topic, out)?;
            }
        }
    }
    Ok(())
}

async fn delete(args: &DeleteArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let client = args.connection.client(ASK_TIMEOUT)?;
    let failed = |e| CommandError::cluster(format!("delete topic {}", args.name), e);
    // By id as well: should the outcome of a try be unknown, another can only mean the same topic.
    let id = client.describe_topic(&args.name).await.map_err(failed)?.record.id;
    let topic = TopicRef::Both { name: args.name.clone(), id };
    client.delete_topic(&topic).await.map_err(failed)?;
    writeln!(out, "deleted topic {} ({id})", args.name)?;
    Ok(())
}
