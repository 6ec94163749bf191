//! A cluster of one real node: an API server with its controllers and scheduler, and a machine on which a kubelet runs the
//! pods in containers.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::machine::{ADDRESS, Machine, PODS, enter_own_network};
use super::{ControlPlane, Kubectl, images};
use crate::process::{CommandLine, Process};
use crate::{parts, wait};

/// How long the node may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// Where containerd listens, inside the machine.
const CONTAINERD: &str = "/run/containerd/containerd.sock";

/// The image that holds a pod's network.
const PAUSE: &str = "localhost/pause:1";

/// How many volumes there are for pods.
const VOLUMES: usize = 4;

/// The cluster. Everything in it dies when it is dropped.
#[derive(Debug)]
pub struct Node {
    // In the order in which they end.
    processes: Vec<Process>,
    machine: Machine,
    control_plane: ControlPlane,
    containerd: PathBuf,
}

/// Where the programs are.
struct Programs {
    containerd: PathBuf,
    kubelet: PathBuf,
    controllers: PathBuf,
    scheduler: PathBuf,
    proxy: PathBuf,
    names: PathBuf,
}

impl Programs {
    fn find() -> Option<Self> {
        let program = |name: &str| Some(parts::find(name)?.join(name));
        Some(Self {
            containerd: parts::find("containerd")?,
            kubelet: program("kubelet")?,
            controllers: program("kube-controller-manager")?,
            scheduler: program("kube-scheduler")?,
            proxy: program("kube-proxy")?,
            names: program("coredns")?,
        })
    }
}

impl Node {
    /// Starts everything and waits until the node is ready for pods; `None` when a part was left out. The calling thread gets
    /// a network of its own: call it first in a test that is alone in its file.
    ///
    /// # Panics
    /// When something does not start.
    pub async fn start() -> Option<Self> {
        let programs = Programs::find()?;
        enter_own_network();
        let control_plane = ControlPlane::start().await?;
        let machine = Machine::start(control_plane.place()).await;
        let mut node =
            Self { processes: Vec::new(), machine, control_plane, containerd: programs.containerd.clone() };
        node.start_control(&programs);
        node.start_machine(&programs).await;
        node.offer_volumes().await;
        node.ready().await;
        Some(node)
    }

    /// kubectl as the cluster's administrator.
    #[must_use]
    pub fn kubectl(&self) -> &Kubectl {
        self.control_plane.kubectl()
    }

    /// The machine that runs the pods.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The temporary directory, for what else a test needs.
    #[must_use]
    pub fn place(&self) -> &Path {
        self.control_plane.place()
    }

    /// Brings an image to the node: an OCI archive that names it.
    ///
    /// # Panics
    /// When containerd refuses it.
    pub async fn import(&self, archive: &Path) {
        let mut command = self.machine.command(self.containerd.join("usr/bin/ctr"));
        command.args(["--address", CONTAINERD, "--namespace", "k8s.io", "images", "import"]).arg(archive);
        let output = command.output().await.expect("ctr starts");
        assert!(output.status.success(), "{output:?}");
    }

    fn start_control(&mut self, programs: &Programs) {
        let settings = self.kubectl().configuration().to_owned();
        let key = self.control_plane.service_account_key();
        let flag = |name: &str, value: &Path| [OsString::from(name), value.into()];
        let controllers = CommandLine::new(&programs.controllers)
            .args(flag("--kubeconfig", &settings))
            .args(flag("--service-account-private-key-file", &key))
            .args(flag("--cert-dir", &self.place().join("controllers")))
            .args(["--bind-address=127.0.0.1", "--leader-elect=false"]);
        let scheduler = CommandLine::new(&programs.scheduler)
            .args(flag("--kubeconfig", &settings))
            .args(flag("--cert-dir", &self.place().join("scheduler")))
            .args(["--bind-address=127.0.0.1", "--leader-elect=false"]);
        let names = CommandLine::new(&programs.names)
            .args(flag("-conf", &self.write("Corefile", &corefile(&settings))));
        let proxy = CommandLine::new(&programs.proxy)
            .args(flag("--config", &self.write("kube-proxy.yaml", &proxy_configuration(&settings))))
            .envs(self.environment());
        for (name, line) in [
            ("kube-controller-manager", controllers),
            ("kube-scheduler", scheduler),
            ("coredns", names),
            ("kube-proxy", proxy),
        ] {
            self.start_process(name, &line);
        }
    }

    async fn start_machine(&mut self, programs: &Programs) {
        let place = self.place().to_owned();
        fs::create_dir(place.join("cni")).expect("the place is writable");
        self.write("cni/10-pods.conflist", &network(&place));
        let configuration =
            self.write("containerd.toml", &containerd_configuration(&place, &self.containerd));
        let line = self.machine.line(self.containerd.join("usr/bin/containerd"));
        let line = line.args(["--config".as_ref(), configuration.as_os_str()]).envs(self.environment());
        self.start_process("containerd", &line);
        let mut answers = self.machine.command(self.containerd.join("usr/bin/ctr"));
        answers.args(["--address", CONTAINERD, "version"]);
        wait::until("containerd", wait::SOON, async || {
            answers.output().await.expect("ctr starts").status.success().then_some(())
        })
        .await;
        self.import(&images::pause(&place, PAUSE)).await;

        let configuration = self.write("kubelet.yaml", &kubelet_configuration(&place));
        let line = self.machine.line(&programs.kubelet).args([
            "--config".as_ref(),
            configuration.as_os_str(),
            "--kubeconfig".as_ref(),
            self.kubectl().configuration().as_os_str(),
            "--root-dir".as_ref(),
            place.join("kubelet").as_os_str(),
            "--cert-dir".as_ref(),
            place.join("kubelet-certificates").as_os_str(),
        ]);
        let line = line.args(["--hostname-override=node1", &format!("--node-ip={ADDRESS}")]);
        self.start_process("kubelet", &line.envs(self.environment()));
    }

    fn start_process(&mut self, name: &str, line: &CommandLine) {
        let log = self.place().join(format!("{name}.log"));
        self.processes.push(Process::start(name, line, &log));
    }

    /// Directories of the machine that pods' claims are bound to, for good: a pod that is replaced finds its files.
    async fn offer_volumes(&self) {
        let volume = |number: usize| {
            let path = self.place().join(format!("volume-{number}"));
            fs::create_dir(&path).expect("the place is writable");
            format!(
                "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: volume-{number}}}\nspec:\n  capacity: {{storage: 10Gi}}\n  \
                 accessModes: [ReadWriteOnce]\n  local: {{path: {}}}\n  nodeAffinity: {{required: {{nodeSelectorTerms: [{{\
                 matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [node1]}}]}}]}}}}\n---\n",
                path.display()
            )
        };
        let file = self.write("volumes.yaml", &(0..VOLUMES).map(volume).collect::<String>());
        self.kubectl().run(["apply".as_ref(), "-f".as_ref(), file.as_os_str()]).await.quietly();
    }

    async fn ready(&mut self) {
        wait::until("the node to be ready", READY_WITHIN, async || {
            for process in &mut self.processes {
                if let Some(status) = process.ended() {
                    panic!("it ended: {status}\n{}", process.output_tail());
                }
            }
            let ready = ["wait", "--for=condition=Ready", "--timeout=1s", "node/node1"];
            self.control_plane.kubectl().run(ready).await.done.then_some(())
        })
        .await;
    }

    /// Where Debian's programs, which are installed beside the system, find each other and their libraries.
    fn environment(&self) -> [(OsString, OsString); 2] {
        let below = |path: &str| self.containerd.join(path).into_os_string().into_string().expect("text");
        let path = std::env::var("PATH").expect("a path");
        [
            ("PATH".into(), format!("{}:{}:{path}", below("usr/sbin"), below("usr/bin")).into()),
            ("LD_LIBRARY_PATH".into(), below("usr/lib/x86_64-linux-gnu").into()),
        ]
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let file = self.place().join(name);
        fs::write(&file, text).expect("the place is writable");
        file
    }
}

/// The cluster's names, and no others: there is nobody else to ask.
fn corefile(settings: &Path) -> String {
    let settings = settings.display();
    format!(
        "cluster.local:53 {{\n  bind {ADDRESS}\n  errors\n  \
         kubernetes {{\n    kubeconfig {settings} test\n    ttl 1\n  }}\n}}\n\
         .:53 {{\n  bind {ADDRESS}\n  template ANY ANY {{\n    rcode NXDOMAIN\n  }}\n}}\n"
    )
}

fn proxy_configuration(settings: &Path) -> String {
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n\
         bindAddress: {ADDRESS}\nhealthzBindAddress: 127.0.0.1:10256\nmetricsBindAddress: 127.0.0.1:10249\n\
         hostnameOverride: node1\nclusterCIDR: {PODS}\nclientConnection: {{kubeconfig: {}}}\n\
         conntrack: {{maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}\n",
        settings.display()
    )
}

fn containerd_configuration(place: &Path, part: &Path) -> String {
    let (root, part, networks) = (place.join("containerd"), part.display(), place.join("cni"));
    format!(
        "version = 2\nroot = \"{}\"\nstate = \"/run/containerd\"\n[grpc]\naddress = \"{CONTAINERD}\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"{PAUSE}\"\ndisable_apparmor = true\n\
         restrict_oom_score_adj = true\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"{part}/usr/lib/cni\"\nconf_dir = \"{}\"\n",
        root.display(),
        networks.display()
    )
}

/// Each pod has a link of its own to the machine, so that what it sends to a service passes the machine's rules.
fn network(place: &Path) -> String {
    serde_json::json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [{
            "type": "ptp",
            "ipam": {
                "type": "host-local",
                "dataDir": place.join("pod-addresses"),
                "ranges": [[{ "subnet": PODS }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    })
    .to_string()
}

fn kubelet_configuration(place: &Path) -> String {
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\naddress: {ADDRESS}\n\
         authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}\n\
         authorization: {{mode: AlwaysAllow}}\ncontainerRuntimeEndpoint: unix://{CONTAINERD}\n\
         cgroupDriver: cgroupfs\nfailCgroupV1: false\nfailSwapOn: false\nenforceNodeAllocatable: [pods]\n\
         clusterDNS: [{ADDRESS}]\nclusterDomain: cluster.local\nresolvConf: {}\npodLogsDir: {}\n\
         evictionHard: {{memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}}\n",
        place.join("resolv.conf").display(),
        place.join("pod-logs").display(),
    )
}
