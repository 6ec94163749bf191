//! A machine within this one, for what would change the machine that it runs on: a kubelet and the containers of its pods.
//!
//! What must hold: mounts, processes and network are its own; the kernel takes all of them away when it is dropped, and when
//! the test is killed. What is left are the control groups of its pods, empty, which [`Machine::drop`] removes.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};

use crate::process::{CommandLine, Process};
use crate::wait;

/// The machine's address.
pub(super) const ADDRESS: &str = "10.89.0.1";

/// What addresses pods get.
pub(super) const PODS: &str = "10.88.0.0/24";

/// Kernel settings that a kubelet would change for the real machine too; it leaves alone what is as it wants.
const KERNEL_SETTINGS: [(&str, &str); 3] =
    [("vm/overcommit_memory", "1"), ("kernel/panic", "10"), ("kernel/panic_on_oops", "1")];

/// Where control groups are mounted.
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// The control group of all pods.
const PODS_GROUP: &str = "kubepods";

/// How often, and how many times, the end of a machine's processes is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const LOOKS_MAX: u32 = 100;

/// A running machine.
#[derive(Debug)]
pub struct Machine {
    process: Process,
    init: u32,
}

/// Gives the calling thread, and every thread and process that it starts from now on, a network of its own: loopback, and a
/// machine's address with a default route, which services need. Call it first in a test that is alone in its file.
///
/// # Panics
/// When the kernel refuses; it takes root.
pub(super) fn enter_own_network() {
    unshare(CloneFlags::CLONE_NEWNET).expect("root may have a network of its own");
    let script = format!(
        "ip link set lo up && ip link add node0 type bridge && ip addr add {ADDRESS}/24 dev node0 && \
         ip link set node0 up && ip route add default dev node0 && sysctl -qw net.ipv4.ip_forward=1"
    );
    let status = std::process::Command::new("sh").args(["-c", &script]).status().expect("a shell");
    assert!(status.success(), "the network is set up");
}

impl Machine {
    /// Starts one. Names are asked for at its own address; `place` is for its files.
    ///
    /// # Panics
    /// When it does not start; it takes root.
    pub async fn start(place: &Path) -> Self {
        groups().iter().for_each(|group| remove_group(group));
        assert!(groups().is_empty(), "this machine runs pods already: {:?}", groups());
        let resolver = place.join("resolv.conf");
        fs::write(&resolver, format!("nameserver {ADDRESS}\n")).expect("the place is writable");
        let settings = KERNEL_SETTINGS.map(|(name, value)| {
            format!("echo {value} >/run/{0}; mount --bind /run/{0} /proc/sys/{name}", name.replace('/', "-"))
        });
        let script = format!(
            "set -e; mount --make-rshared /; mount -t tmpfs tmpfs /run; mount --bind {} /etc/resolv.conf\n{}\n\
             echo started; while sleep 1; do :; done", // a shell, unlike sleep, buries the processes that it inherits
            resolver.display(),
            settings.join("\n"),
        );
        let line = CommandLine::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
            .args(["sh", "-c", &script]);
        let mut process = Process::start("the machine", &line, &place.join("machine.log"));
        process.prints("started", wait::SOON).await;
        let children = format!("/proc/{0}/task/{0}/children", process.id());
        let children = fs::read_to_string(children).expect("it runs");
        let init = children.trim().parse().expect("unshare has one child");
        Self { process, init }
    }

    /// The command line of a program in the machine.
    #[must_use]
    pub fn line(&self, program: impl Into<OsString>) -> CommandLine {
        CommandLine::new("nsenter").args(self.enter()).args([program.into()])
    }

    /// A program in the machine that is run to its end.
    #[must_use]
    pub fn command(&self, program: impl Into<OsString>) -> tokio::process::Command {
        let mut command = tokio::process::Command::new("nsenter");
        command.args(self.enter()).arg(program.into()).kill_on_drop(true);
        command
    }

    fn enter(&self) -> [OsString; 4] {
        [format!("--target={}", self.init).into(), "--mount".into(), "--pid".into(), "--".into()]
    }
}

impl Drop for Machine {
    #[allow(clippy::disallowed_methods, reason = "a drop cannot wait in any other way")]
    fn drop(&mut self) {
        self.process.kill();
        // The kernel takes a moment to end what was inside. What it has not ended then stays, and the next start removes it.
        for _ in 0..LOOKS_MAX {
            groups().iter().for_each(|group| remove_group(group));
            if groups().is_empty() {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// The control groups of pods, one for each controller.
fn groups() -> Vec<PathBuf> {
    let mounted = fs::read_dir(CONTROL_GROUPS).into_iter().flatten().flatten();
    let groups = mounted.map(|controller| controller.path().join(PODS_GROUP));
    groups.chain([Path::new(CONTROL_GROUPS).join(PODS_GROUP)]).filter(|group| group.exists()).collect()
}

fn remove_group(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_group(&entry.path());
        }
    }
    // A group with a process in it refuses.
    let _ = fs::remove_dir(group);
}
