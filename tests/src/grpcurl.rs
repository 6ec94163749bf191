//! grpcurl against one server, as a person at a shell uses it: what it printed, and how it ended.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::process::Command;

use crate::parts;

/// grpcurl ends with this plus the status code.
const STATUS_BASE: i32 = 64;

/// grpcurl, pointed at a server.
#[derive(Debug, Clone)]
pub struct Grpcurl {
    program: PathBuf,
    address: SocketAddr,
}

/// What one run said.
#[derive(Debug)]
pub struct Said {
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    /// How the program ended.
    pub exit: i32,
    /// From its start to its end.
    pub took: Duration,
}

impl Grpcurl {
    /// grpcurl for the server at `address`; `None` when the part was left out.
    #[must_use]
    pub fn at(address: SocketAddr) -> Option<Self> {
        Some(Self { program: parts::grpcurl()?, address })
    }

    /// The same for another server.
    #[must_use]
    pub fn of(&self, address: SocketAddr) -> Self {
        Self { program: self.program.clone(), address }
    }

    /// `grpcurl -plaintext OPTIONS… ADDRESS REST…`.
    ///
    /// # Panics
    /// When grpcurl does not start, or was killed.
    pub async fn run(&self, options: &[&str], rest: &[&str]) -> Said {
        let began = Instant::now();
        let mut command = Command::new(&self.program);
        command.arg("-plaintext").args(options).arg(self.address.to_string()).args(rest);
        let output = command.kill_on_drop(true).output().await.expect("grpcurl starts");
        Said {
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
            exit: output.status.code().expect("grpcurl ends by itself"),
            took: began.elapsed(),
        }
    }

    /// Calls a method of `highwater.v1` with a request written as JSON.
    pub async fn call(&self, method: &str, request: &str) -> Said {
        self.run(&["-d", request], &[&format!("highwater.v1.{method}")]).await
    }
}

impl Said {
    /// The answer of a call that succeeded.
    ///
    /// # Panics
    /// When it failed.
    #[must_use]
    pub fn json(&self) -> Value {
        assert_eq!(self.exit, 0, "{}", self.err);
        serde_json::from_str(&self.out).expect("grpcurl prints JSON")
    }

    /// The lines of a listing that succeeded.
    ///
    /// # Panics
    /// When it failed.
    #[must_use]
    pub fn lines(&self) -> Vec<&str> {
        assert_eq!(self.exit, 0, "{}", self.err);
        self.out.lines().collect()
    }

    /// The status code of a call that failed.
    ///
    /// # Panics
    /// When it did not fail by a status.
    #[must_use]
    pub fn status(&self) -> tonic::Code {
        assert!(self.exit > STATUS_BASE, "exit {}: {}{}", self.exit, self.out, self.err);
        tonic::Code::from(self.exit - STATUS_BASE)
    }
}
