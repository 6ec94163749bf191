//! The layers, their errors, and what a command line gets.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::time::Duration;

use highwater_types::NodeId;

use super::launch::{Launch, settings};
use super::*;

crate::settings! {
    /// A program's own settings, for these tests.
    struct Own {
        /// How long a fetch waits for records, in milliseconds.
        wait_max: Duration = "replica.fetch.wait.max.ms", default "500ms", in Duration::ZERO..=Duration::from_secs(60);
        /// The most that one answer carries, in bytes.
        max_bytes: ByteSize = "replica.fetch.max.bytes", default "1MiB", in ByteSize(1)..=ByteSize(1 << 30);
        /// How many loops fetch from one leader.
        fetchers: NonZeroU32 = "num.replica.fetchers", default "1";
        /// A name for people.
        label: Option<String> = "label", optional;
    }
}

const PROGRAM: ProgramInfo = ProgramInfo { name: "tester", version: "1.2.3", about: "Tests." };

const REQUIRED: [&str; 6] = ["--node-id", "7", "--data-dir", "/data", "--coordination", "file:/records"];

fn launch(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Launch<Own>, ConfigErrors> {
    let arguments = ["tester"].iter().chain(arguments).map(OsString::from);
    let variables = variables.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    settings(&PROGRAM, arguments, variables, |_, _| Ok(()))
}

fn run(arguments: &[&str], variables: &[(&str, &str)]) -> (CommonSettings, Own) {
    match launch(&[&REQUIRED[..], arguments].concat(), variables).unwrap() {
        Launch::Run(common, own) => (common, own),
        Launch::Print(text) => panic!("printed {text}"),
    }
}

fn fails(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    launch(&[&REQUIRED[..], arguments].concat(), variables).unwrap_err().to_string()
}

fn file(text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tester.toml");
    std::fs::write(&path, text).unwrap();
    (dir, path.display().to_string())
}

#[test]
fn defaults_hold_where_no_layer_says_otherwise() {
    let (common, own) = run(&[], &[]);
    assert_eq!(common.node_id, NodeId::new(7).unwrap());
    assert_eq!(common.coordination, CoordinationTarget::File("/records".into()));
    assert_eq!((own.wait_max, own.max_bytes), (Duration::from_millis(500), ByteSize(1 << 20)));
    assert_eq!((own.fetchers.get(), own.label), (1, None));
}

#[test]
fn each_layer_overrides_the_one_before() {
    let (_dir, path) = file("replica.fetch.wait.max.ms = 1\nlabel = \"file\"\n[num.replica]\nfetchers = 2\n");
    let config = ["--config", path.as_str()];
    let variables = [("HIGHWATER_REPLICA_FETCH_WAIT_MAX_MS", "2ms"), ("HIGHWATER_LABEL", "variable")];
    let (_, own) = run(&config, &[]);
    assert_eq!((own.wait_max, own.fetchers.get()), (Duration::from_millis(1), 2));
    assert_eq!(own.label.as_deref(), Some("file"));
    let (_, own) = run(&config, &variables);
    assert_eq!((own.wait_max, own.fetchers.get()), (Duration::from_millis(2), 2));
    let flags = [&config[..], &["--replica-fetch-wait-max-ms", "3s", "--label=flag"]].concat();
    let (_, own) = run(&flags, &variables);
    assert_eq!((own.wait_max, own.label.as_deref()), (Duration::from_secs(3), Some("flag")));
}

#[test]
fn a_bad_value_is_an_error_in_every_layer_and_names_everything() {
    let (_dir, path) = file("replica.fetch.max.bytes = \"10 MB/x\"");
    let in_file = fails(&["--config", &path], &[]);
    let in_variable = fails(&[], &[("HIGHWATER_REPLICA_FETCH_MAX_BYTES", "10 MB/x")]);
    let in_flag = fails(&["--replica-fetch-max-bytes", "10 MB/x"], &[]);
    let sources = [
        (&in_file, path.as_str()),
        (&in_variable, "HIGHWATER_REPLICA_FETCH_MAX_BYTES"),
        (&in_flag, "--replica-fetch-max-bytes"),
    ];
    for (error, source) in sources {
        for part in ["replica.fetch.max.bytes", "'10 MB/x'", source, "MiB"] {
            assert!(error.contains(part), "{part} is missing in: {error}");
        }
    }
    let overridden = fails(&["--config", &path, "--replica-fetch-max-bytes", "1MB"], &[]);
    assert!(overridden.contains("10 MB/x"), "a later layer does not hide it: {overridden}");
}

#[test]
fn an_unknown_name_is_an_error_in_every_layer() {
    let (_dir, path) = file("[replica.fetch]\nmax.byte = \"1MB\"");
    let in_file = fails(&["--config", &path], &[]);
    assert!(in_file.contains("replica.fetch.max.byte = '1MB'"), "{in_file}");
    assert!(in_file.contains("replica.fetch.max.bytes, num.replica.fetchers"), "what is allowed: {in_file}");
    let in_variable = fails(&[], &[("HIGHWATER_REPLICA_FETCH_MAX_BYTE", "1MB")]);
    assert!(in_variable.contains("HIGHWATER_REPLICA_FETCH_MAX_BYTE = '1MB'"), "{in_variable}");
    let in_flag = fails(&["--replica-fetch-max-byte", "1MB"], &[]);
    assert!(in_flag.contains("--replica-fetch-max-byte"), "{in_flag}");
}

#[test]
fn foreign_variables_are_left_alone() {
    let kubernetes = [
        ("HIGHWATER_SERVICE_HOST", "10.0.0.1"),
        ("HIGHWATER_LEADER_SERVICE_PORT_GRPC", "9400"),
        ("HIGHWATER_PORT", "tcp://10.0.0.1:9400"),
        ("HIGHWATER_PORT_9400_TCP_ADDR", "10.0.0.1"),
        ("HIGHWATER_BOOT_ID", "x"),
        ("PATH", "/bin"),
    ];
    run(&[], &kubernetes);
}

#[test]
fn a_value_outside_its_range_is_refused() {
    let error = fails(&["--replica-fetch-wait-max-ms", "2min"], &[]);
    assert!(error.contains("0s to 60s is allowed"), "{error}");
    assert!(fails(&["--num-replica-fetchers", "0"], &[]).contains("from 1"));
    assert!(fails(&["--replica-fetch-max-bytes", "-1"], &[]).contains("'-1'"));
}

#[test]
fn all_errors_are_told_at_once() {
    let errors = launch(&["--num-replica-fetchers", "x", "--label", "l"], &[]).unwrap_err();
    assert_eq!(errors.0.len(), 4, "three required settings and a bad one: {errors}");
    assert!(errors.to_string().contains("HIGHWATER_DATA_DIR=VALUE"), "{errors}");
}

#[test]
fn a_setting_that_stands_twice_in_a_file_is_refused() {
    let (_dir, path) = file("label = \"a\"\n\"replica.fetch.max.bytes\" = 1\n[replica.fetch.max]\nbytes = 2");
    let error = fails(&["--config", &path], &[]);
    assert!(error.contains("replica.fetch.max.bytes stands twice"), "{error}");
    let (_dir, path) = file("label = ");
    assert!(fails(&["--config", &path], &[]).contains("not TOML"));
    assert!(fails(&["--config", "/none/such"], &[]).contains("/none/such"));
}

#[test]
fn stores_that_are_not_built_in_are_named() {
    let read = <CoordinationTarget as SettingValue>::read;
    if cfg!(feature = "etcd") {
        let members = vec!["a:2379".parse().unwrap(), "b:2379".parse().unwrap()];
        assert_eq!(read("etcd:http://a:2379,b:2379").unwrap(), CoordinationTarget::Etcd(members));
        assert!(read("etcd:").unwrap_err().contains("etcd:HOST:PORT"));
        assert!(read("etcd:https://a:2379").is_err(), "there is no TLS yet");
    } else {
        assert!(read("etcd:a:2379").unwrap_err().contains("without the cargo feature etcd"));
    }
    assert!(read("kubernetes").unwrap_err().contains("kubernetes is not built in"));
    assert!(read("file:").unwrap_err().contains("file:DIR"));
    let leaders = read("leader:http://a:9400,b:9401").unwrap();
    assert_eq!(
        leaders,
        CoordinationTarget::Leader(vec!["a:9400".parse().unwrap(), "b:9401".parse().unwrap()])
    );
    assert!(read("leader:nowhere").is_err());
}

#[test]
fn help_version_and_check_are_printed() {
    let printed = |arguments: &[&str]| match launch(arguments, &[]) {
        Ok(Launch::Print(text)) => text,
        other => panic!("{other:?}"),
    };
    let help = printed(&["--help"]);
    for key in CommonSettings::KEYS.iter().chain(Own::KEYS) {
        assert!(help.contains(&format!("--{} ", key.flag())), "{} is missing", key.name);
    }
    assert!(help.contains("[default: 500ms]"), "{help}");
    assert!(printed(&["--version"]).contains("1.2.3"));
    assert!(printed(&[&REQUIRED[..], &["--check-config"]].concat()).contains("good"));
    let bad = launch(&[&REQUIRED[..], &["--check-config", "--label"]].concat(), &[]);
    assert!(bad.is_err());
}

#[test]
fn what_several_settings_must_be_together_is_checked() {
    let arguments = ["tester"].iter().chain(&REQUIRED).map(OsString::from);
    let refused = settings(&PROGRAM, arguments, Vec::new(), |_, own: &Own| {
        if own.wait_max > Duration::ZERO { Err("wait and bytes do not fit".to_owned()) } else { Ok(()) }
    });
    assert_eq!(refused.unwrap_err().to_string(), "wait and bytes do not fit");
}

#[test]
fn the_example_file_has_every_setting_and_loads() {
    let keys = [CommonSettings::KEYS, Own::KEYS].concat();
    let example = example_file("tester", &keys);
    for key in &keys {
        assert!(example.contains(&format!("{} = \"", key.name)), "{} is missing", key.name);
    }
    let filled = example
        .replace("\nnode.id = \"\"", "\nnode.id = 1")
        .replace("\ndata.dir = \"\"", "\ndata.dir = \"/d\"")
        .replace("\ncoordination = \"\"", "\ncoordination = \"file:/c\"");
    let sources = Sources { file: Some(("example".to_owned(), filled)), ..Sources::default() };
    assert!(load(&keys, &sources).is_ok());
}

#[test]
fn faults_of_a_table_are_found() {
    let key = |name, fallback| Key { name, doc: "x", fallback, check: |t| check::<bool>(t), range: || None };
    let faults = table_faults(&[
        key("a.b", Fallback::Required),
        key("a.b", Fallback::Required),
        key("a", Fallback::Optional),
        key("c", Fallback::Default("maybe")),
        key("D", Fallback::Optional),
        Key { doc: " ", ..key("e", Fallback::Optional) },
    ]);
    assert_eq!(faults.len(), 5, "{faults:?}");
}

#[test]
fn an_address_for_others_is_one_that_they_can_reach() {
    let advertised = |given: Option<&str>, bound: &str| {
        advertised_endpoint(given.map(|g| g.parse().unwrap()).as_ref(), bound.parse().unwrap()).to_string()
    };
    assert_eq!(advertised(None, "0.0.0.0:9400"), "127.0.0.1:9400");
    assert_eq!(advertised(None, "[::1]:9400"), "[::1]:9400");
    assert_eq!(advertised(Some("node-1:19400"), "0.0.0.0:9400"), "node-1:19400");
}

#[test]
fn an_address_that_nobody_can_reach_is_refused() {
    for unreachable in ["node-1:0", "0.0.0.0:9400", "[::]:9400"] {
        let error = fails(&["--advertise", unreachable], &[]);
        assert!(error.contains("advertise") && error.contains(unreachable), "{error}");
        assert!(error.contains("nobody can reach"), "{error}");
    }
    assert!(fails(&[], &[("HIGHWATER_COORDINATION", "leader:node-1:0")]).contains("nobody can reach port 0"));
}

#[test]
fn a_value_out_of_its_range_is_told_the_range_in_words() {
    let error = fails(&["--replica-fetch-max-bytes", "2GiB"], &[]);
    assert!(error.contains("1B to 1GiB is allowed"), "{error}");
    let error = fails(&["--replica-fetch-max-bytes", "much"], &[]);
    assert!(error.contains("1B to 1GiB"), "{error}");
}
