//! Images for a real node, made without a container engine by deploy/image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs;

/// Does nothing until it is killed: what holds a pod's network has no other task.
const PAUSE: &str = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n";

/// The image of the programs under test, by the script that people use. Its path is that of an OCI archive.
///
/// # Panics
/// When the script fails.
#[must_use]
pub fn highwater(place: &Path, name: &str) -> PathBuf {
    let archive = place.join("highwater.tar");
    let build = programs::repository().join("deploy/image/build");
    let programs = programs::path("leader-svc");
    run(Command::new(build)
        .arg(&archive)
        .arg(name)
        .env("IMAGE_PROGRAMS", programs.parent().expect("a directory")));
    archive
}

/// An image that runs a single program, with the libraries that it asks for.
///
/// # Panics
/// When it cannot be packed.
#[must_use]
pub fn of_program(place: &Path, program: &Path, name: &str) -> PathBuf {
    let file = program.file_name().expect("a program has a name");
    let files = place.join(file).with_extension("rootfs");
    let inside = files.join("usr/local/bin").join(file);
    copy(program, &inside);
    fs::create_dir(files.join("tmp")).expect("the place is writable");
    for library in libraries(program) {
        copy(&library, &files.join(library.strip_prefix("/").expect("an absolute path")));
    }
    let archive = files.with_extension("tar");
    let pack = programs::repository().join("deploy/image/archive");
    run(Command::new(pack).args([&files, &archive]).arg(name).arg(Path::new("/usr/local/bin").join(file)));
    archive
}

/// The image that containerd starts first in each pod.
pub(super) fn pause(place: &Path, name: &str) -> PathBuf {
    let (source, program) = (place.join("pause.c"), place.join("pause"));
    fs::write(&source, PAUSE).expect("the place is writable");
    run(Command::new("cc").args(["-static", "-Os", "-o"]).args([&program, &source]));
    of_program(place, &program, name)
}

/// The shared libraries and the loader that a program names; none for a static one.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(program).output().expect("ldd is installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().expect("below the files of an image")).expect("the place is writable");
    fs::copy(from, to).expect("it can be copied");
}

fn run(command: &mut Command) {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {output:?}");
}
