//! A real API server over a real etcd on loopback, without a node: it checks, admits and keeps objects.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use super::Kubectl;
use crate::etcd::Etcd;
use crate::process::{CommandLine, Process};
use crate::{parts, ports, wait};

/// How long the two programs may take to be ready: many times what a busy machine needs.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// Who has this token may do everything.
const TOKEN: &str = "highwater-test";

/// The name under which this user is known.
const ADMINISTRATOR: &str = "administrator";

/// The file of the key that service accounts' tokens are signed with.
const SERVICE_ACCOUNT_KEY: &str = "service-accounts.key";

/// etcd and an API server, alone in a temporary place.
#[derive(Debug)]
pub struct ControlPlane {
    // Programs are declared, and so stopped, before the directory that they use.
    api: Process,
    etcd: Etcd,
    kubectl: Kubectl,
    place: TempDir,
}

impl ControlPlane {
    /// Starts both and waits until the API server is ready; `None` when a part was left out.
    ///
    /// # Panics
    /// When one of them does not start.
    pub async fn start() -> Option<Self> {
        let api = parts::find("kube-apiserver")?.join("kube-apiserver");
        let kubectl = parts::find("kubectl")?.join("kubectl");
        let etcd = Etcd::start(1).await?;
        let place = tempfile::tempdir().expect("a temporary directory");
        let address = ports::loopback();
        let line = api_line(&api, place.path(), etcd.address(0), address);
        let api = Process::start("kube-apiserver", &line, &place.path().join("kube-apiserver.log"));
        let kubectl = Kubectl::new(kubectl, write_kubeconfig(place.path(), address));
        let mut control_plane = Self { api, etcd, kubectl, place };
        control_plane.ready().await;
        Some(control_plane)
    }

    /// kubectl as its administrator.
    #[must_use]
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// The temporary directory, for what else a test needs.
    #[must_use]
    pub fn place(&self) -> &Path {
        self.place.path()
    }

    /// The key that service accounts' tokens are signed with.
    pub(super) fn service_account_key(&self) -> PathBuf {
        self.place().join(SERVICE_ACCOUNT_KEY)
    }

    async fn ready(&mut self) {
        wait::until("the API server to be ready", READY_WITHIN, async || {
            for process in [self.etcd.process_mut(0), &mut self.api] {
                if let Some(status) = process.ended() {
                    panic!("it ended: {status}\n{}", process.output_tail());
                }
            }
            self.kubectl.run(["get", "--raw", "/readyz"]).await.done.then_some(())
        })
        .await;
    }
}

fn api_line(program: &Path, place: &Path, etcd: SocketAddr, address: SocketAddr) -> CommandLine {
    let key = write_key(place);
    let tokens = place.join("tokens.csv");
    fs::write(&tokens, format!("{TOKEN},{ADMINISTRATOR},1,system:masters\n")).expect("the place is writable");
    let flag = |name: &str, value: &dyn std::fmt::Display| format!("--{name}={value}");
    CommandLine::new(program).args([
        flag("etcd-servers", &format!("http://{etcd}")),
        flag("bind-address", &address.ip()),
        flag("secure-port", &address.port()),
        flag("cert-dir", &place.join("certificates").display()),
        flag("endpoint-reconciler-type", &"none"),
        flag("kubelet-preferred-address-types", &"InternalIP"),
        flag("token-auth-file", &tokens.display()),
        flag("authorization-mode", &"Node,RBAC"),
        flag("service-account-issuer", &"https://kubernetes.default.svc"),
        flag("service-account-key-file", &key.display()),
        flag("service-account-signing-key-file", &key.display()),
        flag("service-cluster-ip-range", &"10.96.0.0/16"),
    ])
}

fn write_key(place: &Path) -> PathBuf {
    let key = place.join(SERVICE_ACCOUNT_KEY);
    let status = Command::new("openssl")
        .args(["genpkey", "-quiet", "-algorithm", "RSA", "-out"])
        .arg(&key)
        .status()
        .expect("openssl is installed");
    assert!(status.success(), "openssl makes no key");
    key
}

/// The API server makes its own certificate, which nobody can know beforehand; it is reached on loopback only.
fn write_kubeconfig(place: &Path, address: SocketAddr) -> PathBuf {
    let file = place.join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
         clusters: [{{name: test, cluster: {{server: \"https://{address}\", insecure-skip-tls-verify: true}}}}]\n\
         users: [{{name: {ADMINISTRATOR}, user: {{token: {TOKEN}}}}}]\n\
         contexts: [{{name: test, context: {{cluster: test, user: {ADMINISTRATOR}}}}}]\n"
    );
    fs::write(&file, text).expect("the place is writable");
    file
}
