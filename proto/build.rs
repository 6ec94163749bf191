//! Compiles the .proto files with a compiler written in Rust, so that no protoc is needed, and writes the descriptor set
//! that reflection serves.

use std::path::PathBuf;
use std::{env, error, fs};

use prost::Message as _;

const FILES: [&str; 4] = [
    "highwater/v1/error.proto",
    "highwater/v1/log.proto",
    "highwater/v1/cluster.proto",
    "highwater/v1/replication.proto",
];

fn main() -> Result<(), Box<dyn error::Error>> {
    let descriptors = protox::compile(FILES, ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // `compile_fds` ignores `file_descriptor_set_path`, so the set is written here.
    fs::write(out.join("highwater_descriptor.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    println!("cargo:rerun-if-changed=highwater");
    Ok(())
}
