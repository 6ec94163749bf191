//! The shim and what is built from its shadow, with shell commands as the program that loses power.

use std::process::Command;

use super::*;

struct Machine {
    place: tempfile::TempDir,
    power: PowerLoss,
}

impl Machine {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("a temporary directory");
        let root = place.path().join("data");
        fs::create_dir(&root).expect("a new directory");
        let power = PowerLoss::watch(&root).expect("the shadow is made");
        Self { place, power }
    }

    fn root(&self) -> PathBuf {
        self.place.path().join("data")
    }

    /// Runs a shell script in the directory, under the shim.
    fn run(&self, script: &str) {
        let status = Command::new("sh")
            .args(["-ec", script])
            .current_dir(self.root())
            .envs(self.power.environment())
            .status()
            .expect("a shell");
        assert!(status.success(), "{script}");
    }

    fn lose_power(&mut self) {
        self.power.strike(Unflushed::Lost).expect("the directory is built anew");
    }

    fn names(&self) -> Vec<String> {
        let entries = entries_of(&self.root()).expect("the directory is there");
        entries.into_keys().map(|name| name.into_string().expect("a plain name")).collect()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.root().join(name)).expect("the file is there")
    }
}

#[test]
fn flushed_bytes_stay_and_later_ones_go() {
    let mut machine = Machine::new();
    machine.run("printf one > f; sync f; sync .; printf two >> f");
    assert_eq!(machine.read("f"), "onetwo");
    machine.lose_power();
    assert_eq!(machine.read("f"), "one");
}

#[test]
fn fdatasync_counts_as_a_flush() {
    let mut machine = Machine::new();
    machine.run("printf one > f; sync --data f; sync .");
    machine.lose_power();
    assert_eq!(machine.read("f"), "one");
}

#[test]
fn a_flushed_file_is_gone_when_its_directory_was_not_flushed() {
    let mut machine = Machine::new();
    machine.run("printf one > f; sync f");
    machine.lose_power();
    assert_eq!(machine.names(), Vec::<String>::new());
}

#[test]
fn a_name_without_flushed_bytes_is_an_empty_file() {
    let mut machine = Machine::new();
    machine.run("printf one > f; sync .");
    machine.lose_power();
    assert_eq!(machine.read("f"), "");
}

#[test]
fn an_unflushed_truncation_comes_back() {
    let mut machine = Machine::new();
    machine.run("printf onetwo > f; sync f; sync .; truncate -s 3 f");
    machine.lose_power();
    assert_eq!(machine.read("f"), "onetwo");
    machine.run("truncate -s 3 f; sync f");
    machine.lose_power();
    assert_eq!(machine.read("f"), "one");
}

#[test]
fn a_rename_and_a_removal_count_from_the_flush_of_the_directory() {
    let mut machine = Machine::new();
    machine.run("printf old > f; printf gone > g; sync f g; sync .; printf new > t; sync t; mv t f; rm g");
    machine.lose_power();
    assert_eq!((machine.names(), machine.read("f").as_str()), (vec!["f".to_owned(), "g".to_owned()], "old"));
    machine.run("printf new > t; sync t; mv t f; rm g; sync .");
    machine.lose_power();
    assert_eq!((machine.names(), machine.read("f").as_str()), (vec!["f".to_owned()], "new"));
}

#[test]
fn directories_lose_and_keep_like_files() {
    let mut machine = Machine::new();
    machine.run("mkdir a b; printf x > a/f; printf y > b/f; sync a/f b/f; sync a; sync .");
    machine.lose_power();
    assert_eq!(machine.names(), ["a", "b"]);
    assert_eq!(machine.read("a/f"), "x");
    assert!(!machine.root().join("b/f").exists(), "b itself was not flushed");
    machine.run("rm a/f; rmdir a b");
    assert_eq!(machine.names(), Vec::<String>::new());
    machine.lose_power();
    assert_eq!(machine.read("a/f"), "x");
    machine.run("rm -r a b; sync .");
    machine.lose_power();
    assert_eq!(machine.names(), Vec::<String>::new());
}

#[test]
fn removing_a_full_directory_fails_as_it_would_without_the_shim() {
    let machine = Machine::new();
    machine.run("mkdir a; printf x > a/f; ! rmdir a 2> err; grep -q 'not empty' err; cat a/f > /dev/null");
}

#[test]
fn what_was_flushed_under_an_inode_never_shows_under_its_successor() {
    let mut machine = Machine::new();
    machine.run(
        "printf secret > a; sync a; sync .; rm a; for i in 1 2 3 4 5 6 7 8; do printf x > b$i; done; sync .",
    );
    machine.lose_power();
    for i in 1..=8 {
        assert_eq!(machine.read(&format!("b{i}")), "");
    }
}

#[test]
fn two_lives_of_a_process_share_what_was_flushed() {
    let mut machine = Machine::new();
    machine.run("printf one > f; sync f; sync .");
    machine.run("printf two >> f");
    machine.lose_power();
    assert_eq!(machine.read("f"), "one");
}

#[test]
fn the_shim_says_where_it_is_loaded_and_every_boot_has_another_id() {
    let mut machine = Machine::new();
    machine.run("echo $$ > pid");
    let pid = machine.read("pid").trim().parse().expect("a number");
    assert!(machine.power.is_loaded_in(pid));
    assert!(!machine.power.is_loaded_in(1));
    let before = machine.power.boot_id;
    machine.lose_power();
    assert_ne!(machine.power.boot_id, before);
    assert!(!machine.power.is_loaded_in(pid), "the next life has its own marks");
}

#[test]
fn flushes_at_the_same_time_lose_nothing() {
    let mut machine = Machine::new();
    machine.run(
        "for w in 1 2 3 4; do (for i in 1 2 3 4 5 6 7 8 9 10; do printf $i- >> f$w; sync f$w; printf x > $w.$i; \
         sync .; done) & done; wait",
    );
    machine.lose_power();
    for w in 1..=4 {
        assert_eq!(machine.read(&format!("f{w}")), "1-2-3-4-5-6-7-8-9-10-");
    }
    assert_eq!(machine.names().len(), 4 + 40);
}

#[test]
fn a_torn_loss_keeps_what_was_flushed_and_mixes_the_rest() {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..24 {
        let mut machine = Machine::new();
        machine.run(
            "head -c 8192 /dev/zero | tr '\\0' a > f; sync f; sync .; \
             head -c 8192 /dev/zero | tr '\\0' b >> f; printf new > n; mv f g",
        );
        machine.power.strike(Unflushed::Torn(seed)).expect("the directory is built anew");
        for name in machine.names().iter().filter(|name| *name != "n") {
            let bytes = fs::read(machine.root().join(name)).expect("listed");
            assert!(
                bytes.len() >= 8192 && bytes.iter().take(8192).all(|b| *b == b'a'),
                "seed {seed}: flushed bytes stay"
            );
            assert!(
                bytes.iter().skip(8192).all(|b| *b == b'b' || *b == 0),
                "seed {seed}: the rest is new or zero"
            );
        }
        outcomes.insert(machine.names());
    }
    assert!(outcomes.len() > 3, "the dice decide about names: {outcomes:?}");
}
