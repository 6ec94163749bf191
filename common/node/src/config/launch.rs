//! From a command line to settings, or to an exit code: `--help`, `--version`, `--check-config`, `--config`.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::layers::{ConfigErrors, Sources, load};
use super::table::{Fallback, Key, Settings};
use super::{CommonSettings, Values};

/// Exit code for wrong use: flags or settings.
const WRONG_USE: u8 = 2;

/// What a program says about itself.
#[derive(Clone, Copy, Debug)]
pub struct ProgramInfo {
    /// Its name.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// One line for `--help`.
    pub about: &'static str,
}

/// The settings of this process, from its command line, its environment and its file. `check` looks at what several
/// settings must be together; its error names them.
///
/// # Errors
/// The exit code, where there is nothing to run: help, version and a good `--check-config` were printed (0), or everything
/// that is wrong was (2).
pub fn from_command_line<S: Settings>(
    program: &ProgramInfo,
    check: impl FnOnce(&CommonSettings, &S) -> Result<(), String>,
) -> Result<(CommonSettings, S), ExitCode> {
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .collect();
    match settings(program, std::env::args_os(), variables, check) {
        Ok(Launch::Run(common, own)) => Ok((common, own)),
        Ok(Launch::Print(text)) => {
            // Nobody reads it: then there is nothing left to do either.
            let _ = io::stdout().write_all(text.as_bytes());
            Err(ExitCode::SUCCESS)
        }
        Err(errors) => {
            let _ = io::stderr().write_all(format!("{errors}\n").as_bytes());
            Err(ExitCode::from(WRONG_USE))
        }
    }
}

/// What a command line asks for.
#[derive(Debug)]
pub(super) enum Launch<S> {
    Run(CommonSettings, S),
    Print(String),
}

/// The same, with the process's inputs as arguments.
pub(super) fn settings<S: Settings>(
    program: &ProgramInfo,
    arguments: impl IntoIterator<Item = OsString>,
    variables: Vec<(String, String)>,
    check: impl FnOnce(&CommonSettings, &S) -> Result<(), String>,
) -> Result<Launch<S>, ConfigErrors> {
    let keys = [CommonSettings::KEYS, S::KEYS].concat();
    let one = |error: String| ConfigErrors(vec![error]);
    let matches = match command(program, &keys).try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return Ok(Launch::Print(error.to_string()));
        }
        Err(error) => return Err(one(error.to_string().trim_end().to_owned())),
    };
    let file = match matches.get_one::<PathBuf>("config") {
        None => None,
        Some(path) => {
            let text = fs::read_to_string(path)
                .map_err(|error| one(format!("--config {}: {error}", path.display())))?;
            Some((path.display().to_string(), text))
        }
    };
    let values = load(&keys, &Sources { file, variables, flags: given_flags(&keys, &matches) })?;
    let (common, own) = both(&values).map_err(one)?;
    check(&common, &own).map_err(one)?;
    if matches.get_flag("check-config") {
        return Ok(Launch::Print(format!("{}: the configuration is good\n", program.name)));
    }
    Ok(Launch::Run(common, own))
}

fn both<S: Settings>(values: &Values) -> Result<(CommonSettings, S), String> {
    Ok((CommonSettings::from_values(values)?, S::from_values(values)?))
}

fn command(program: &ProgramInfo, keys: &[Key]) -> Command {
    let config = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("A TOML file with settings");
    let check = Arg::new("check-config")
        .long("check-config")
        .action(ArgAction::SetTrue)
        .help("Check the configuration and exit");
    let flags = keys.iter().map(|key| {
        let doc = key.doc.trim();
        let help = match key.fallback {
            Fallback::Required => format!("{doc} [{}] [required]", key.name),
            Fallback::Optional => format!("{doc} [{}]", key.name),
            Fallback::Default(text) => format!("{doc} [{}] [default: {text}]", key.name),
        };
        // A value may begin with a hyphen: -1 is "no limit" in some settings.
        Arg::new(key.name).long(key.flag()).value_name("VALUE").allow_hyphen_values(true).help(help)
    });
    Command::new(program.name)
        .version(program.version)
        .about(program.about)
        .after_help(
            "Each setting is read from the file, the environment (HIGHWATER_ and the name in capitals, with _ for .) \
             and flags; later ones override earlier ones. Times take us, ms, s, min, h, d; sizes kB, MB, GB (powers of \
             1000) and KiB, MiB, GiB (powers of 1024).",
        )
        .args([config, check])
        .args(flags)
}

fn given_flags(keys: &[Key], matches: &ArgMatches) -> Vec<(&'static str, String)> {
    keys.iter().filter_map(|key| Some((key.name, matches.get_one::<String>(key.name)?.clone()))).collect()
}
