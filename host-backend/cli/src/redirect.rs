//! `paragpu run` and `paragpu doctor PROGRAM`: programs that carry NVIDIA's
//! runtime inside.

mod carried;
mod collect;
mod packages;
mod switch;

use carried::Carried;
use collect::{Found, NotLoaded, Unread, collect, open};
use packages::Package;
pub use switch::redirected;
use switch::{NotRedirected, REDIRECTOR};

use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use paragpu_redirect::facts::{Facts, TEXT};
use paragpu_redirect::program::Kind;
use paragpu_redirect::symbols::{Shared, Table, shared};
use paragpu_redirect::{Interface, find, texts};
use serde::Serialize;

use crate::arguments::Output;
use crate::error::{Error, print, print_json};
use paragpu_control::terminal::plain;

/// NCCL's settings in a guest, as `/etc/nccl.conf` of the packages has them. Kernels of two
/// processes do not see shared memory coherently, so ranks use sockets, unless their GPUs
/// have peer access. A guest does not learn how near two GPUs are: NCCL asks CUDA whatever
/// the distance.
const NCCL: [(&str, &str); 2] = [("NCCL_SHM_DISABLE", "1"), ("NCCL_P2P_LEVEL", "SYS")];
/// The directory in which the packages install the guest's libraries.
const INSTALLED: &str = "/usr/lib/paragpu";

/// Runs a program with the guest's libraries before all others. Returns only on failure.
pub fn run(libraries: Option<&Path>, program: &OsStr, arguments: &[OsString]) -> Error {
    match command(libraries, program, arguments) {
        Ok(mut command) => Error::Run {
            program: program.into(),
            source: command.exec(),
        },
        Err(error) => error,
    }
}

/// The same as a command, for the caller to start.
pub fn command(
    libraries: Option<&Path>,
    program: &OsStr,
    arguments: &[OsString],
) -> Result<Command, Error> {
    let folder = libraries.unwrap_or(Path::new(INSTALLED));
    // The program may change its working directory before it starts others.
    let folder = &std::path::absolute(folder).unwrap_or_else(|_| folder.into());
    let redirector = folder.join(REDIRECTOR);
    if !redirector.is_file() {
        return Err(Error::NoLibraries { path: redirector });
    }
    // The loader splits LD_PRELOAD at these, and has no way to quote them.
    let splits = |byte: &u8| byte.is_ascii_whitespace() || *byte == b':';
    if folder.as_os_str().as_bytes().iter().any(splits) {
        return Err(Error::Unloadable {
            path: folder.clone(),
        });
    }
    let before = |variable: &str, first: &Path, separator: &str| {
        let mut value = first.as_os_str().to_owned();
        if let Some(rest) = env::var_os(variable).filter(|rest| !rest.is_empty()) {
            value.push(separator);
            value.push(rest);
        }
        value
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LD_PRELOAD", before("LD_PRELOAD", &redirector, " "))
        .env("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", folder, ":"))
        // Overrides guest.toml.
        .env("PARAGPU_REDIRECT", "1");
    for (name, value) in NCCL {
        if env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    Ok(command)
}

/// The findings.
#[derive(Debug, Serialize)]
struct Report {
    version: u32,
    ok: bool,
    objects: usize,
    runtimes: Vec<Carried>,
    /// Python packages that use CUDA.
    packages: Vec<Package>,
    /// Programs and libraries that the loader cannot load here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_loaded: Vec<NotLoaded>,
    /// Programs with runtimes that the redirector leaves alone, because they have more rights
    /// than their user.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    privileged: Vec<PathBuf>,
    /// What could not be read, and may contain more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unread: Vec<Unread>,
    /// Why programs started here are not redirected.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_redirected: Option<String>,
}

/// Reports the runtimes in programs, libraries and folders without running them. Fails
/// if one of them is not served, if the loader cannot load a program, or if something cannot be
/// read.
pub fn examine(paths: &[PathBuf], output: Output) -> Result<ExitCode, Error> {
    let facts = Facts::parse(TEXT).map_err(Error::Facts)?;
    let mut found = Found::default();
    for path in paths {
        collect(path, &mut found)?;
    }
    let Found {
        objects,
        packages,
        not_loaded,
        privileged,
        unread,
    } = found;
    let runtimes: Vec<Carried> = objects
        .iter()
        .flat_map(|object| inside(object, &facts))
        .collect();
    let carries = |objects: &BTreeSet<PathBuf>| {
        let mut runtimes = runtimes.iter();
        runtimes.any(|carried| objects.contains(&carried.object))
    };
    let privileged: Vec<PathBuf> = privileged
        .into_iter()
        .filter(|(_, objects)| carries(objects))
        .map(|(program, _)| program)
        .collect();
    let missing = redirected().err();
    let fails = missing.as_ref().is_some_and(NotRedirected::fails);
    let served = |carried: &Carried| carried.served_by.is_some() && !fails;
    let report = Report {
        version: 1,
        ok: runtimes.iter().all(served)
            && not_loaded.is_empty()
            && privileged.is_empty()
            && unread.is_empty(),
        objects: objects.len(),
        packages: packages::using_cuda(&packages, &objects, &runtimes),
        runtimes,
        not_loaded,
        privileged,
        unread,
        not_redirected: missing.map(|missing| missing.to_string()),
    };
    match output {
        Output::Json => print_json(&report)?,
        Output::Text => print(text(&report))?,
    }
    Ok(if report.ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The runtimes inside an object.
fn inside(object: &Path, facts: &Facts<'_>) -> Vec<Carried> {
    let Ok(Some(image)) = open(object) else {
        return Vec::new();
    };
    // No redirector can be loaded into it.
    let is_static = collect::kind(&image) == Some(Kind::Static);
    let carried = |kind, releases: &str, interface: Option<Interface>, detail: &str| Carried {
        object: object.into(),
        kind,
        releases: releases.split_whitespace().map(str::to_owned).collect(),
        served_by: interface.filter(|_| !is_static).map(Interface::library),
        build_id: image.build_id().map(|id| id.to_string()),
        detail: match is_static {
            true => format!("{detail}, in a program without a dynamic loader"),
            false => detail.into(),
        },
    };
    let dynamic = image.dynamic();
    match dynamic.and_then(|dynamic| shared(&image, &dynamic)) {
        Some(Shared::Ours) => return Vec::new(),
        Some(Shared::Nvidias(interface)) => {
            let detail = match interface {
                // NVIDIA's library, or one that calls it, such as TensorFlow's.
                Some(_) => "by its exports",
                None => "by its exports, older than CUDA 12",
            };
            return vec![carried("shared", "", interface, detail)];
        }
        None if !is_static && !find::may_carry(&image) => return Vec::new(),
        None => {}
    }
    let (mut exact, mut alike) = (Vec::new(), None);
    find::search(&image, facts.builds(), |place| {
        if place.exact {
            let interface = Interface::of_version(place.build.newest());
            exact.push(carried(
                "static",
                place.build.releases,
                interface,
                "by its fingerprint",
            ));
        } else {
            alike = Some(place.build.newest().to_owned());
        }
    });
    if !exact.is_empty() {
        return exact;
    }
    let named = Table::of_file(image.raw()).and_then(|table| table.runtime(&image, facts));
    if let Some(named) = named {
        let detail = match named.interface {
            Some(_) => "by its symbols",
            None => "by its symbols, older than CUDA 12",
        };
        return vec![carried("static", "", named.interface, detail)];
    }
    let mut others = Vec::new();
    texts::search(&image, facts, |runtime| {
        let detail = "another build, by the names in its code";
        others.push(carried("static", "", runtime.interface, detail));
    });
    if !others.is_empty() {
        return others;
    }
    match alike {
        Some(alike) => {
            let detail = format!("an unknown build, much like {alike}");
            vec![carried("static", "", None, &detail)]
        }
        // Releases without a fingerprint, such as those before 12.
        None if !is_cufile(object) && image.raw().is_marked() => {
            vec![carried(
                "static",
                "",
                None,
                "an unknown build, by its texts",
            )]
        }
        None => Vec::new(),
    }
}

/// Whether this is cuFile, which carries the runtime of an old release. Frameworks depend on
/// it for GPUDirect Storage only, and run without.
fn is_cufile(object: &Path) -> bool {
    let name = object.file_name().unwrap_or_default();
    name.as_bytes().starts_with(b"libcufile")
}

fn text(report: &Report) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for carried in &report.runtimes {
        let build = match carried.releases.as_slice() {
            [] => String::new(),
            releases => format!(" {}", releases.join(", ")),
        };
        let served = match carried.served_by {
            Some(library) if report.not_redirected.is_some() => format!("{library} can serve it"),
            Some(library) => format!("redirected to {library}"),
            None => "NOT SERVED: its calls fail; see docs/redirect.md".to_owned(),
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{}: {} CUDA runtime{build} ({}): {served}",
            carried.object.display(),
            carried.kind,
            carried.detail,
        );
        if let (None, Some(id)) = (carried.served_by, &carried.build_id) {
            let _ = writeln!(text, "    build-id {id}");
        }
    }
    text.push_str(&packages::text(
        &report.packages,
        report.not_redirected.is_none(),
    ));
    let servable = |carried: &Carried| carried.served_by.is_some();
    if let Some(reason) = &report.not_redirected
        && report.runtimes.iter().any(servable)
    {
        let _ = writeln!(
            text,
            "not redirected: {reason}; `paragpu run PROGRAM` redirects one program"
        );
    }
    for program in &report.privileged {
        let _ = writeln!(
            text,
            "{}: NOT REDIRECTED: it runs with more rights than its user (setuid, setgid or file \
             capabilities)",
            program.display()
        );
    }
    for Unread { path, reason } in &report.unread {
        let _ = writeln!(text, "{}: NOT READ: {reason}", path.display());
    }
    for NotLoaded { object, reason } in &report.not_loaded {
        let advice = match reason.contains("libcuda") {
            true => "; `paragpu run PROGRAM` adds paragpu's libraries to LD_LIBRARY_PATH",
            false => "",
        };
        // The loader names the object first, too.
        let object = format!("{}: ", object.display());
        let reason = plain(reason.strip_prefix(&object).unwrap_or(reason));
        let _ = writeln!(text, "{object}CANNOT START here: {reason}{advice}");
    }
    if report.runtimes.is_empty() {
        let count = report.objects;
        let objects = if count == 1 { "object" } else { "objects" };
        let _ = writeln!(text, "no NVIDIA CUDA runtime in {count} {objects}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_program_without_cuda_carries_none() {
        let mut found = Found::default();
        collect(Path::new("sh"), &mut found).expect("every system has it");
        let objects = found.objects;
        assert!(
            objects.len() > 1,
            "the C library belongs to it: {objects:?}"
        );
        let facts = Facts::parse(TEXT).expect("sound");
        assert!(
            objects
                .iter()
                .all(|object| inside(object, &facts).is_empty())
        );
    }

    #[test]
    fn libraries_are_named_absolutely() {
        let folder = tempfile::tempdir_in(".").expect("a folder");
        fs::write(folder.path().join(REDIRECTOR), "").expect("it is written");
        let relative = Path::new(folder.path().file_name().expect("a name"));
        let command = command(Some(relative), OsStr::new("true"), &[]).expect("a command");
        let paths: Vec<_> = command
            .get_envs()
            .filter(|(name, _)| {
                ["LD_PRELOAD", "LD_LIBRARY_PATH"]
                    .map(OsStr::new)
                    .contains(name)
            })
            .collect();
        assert_eq!(paths.len(), 2);
        for (name, value) in paths {
            let first = value.expect("it is set");
            assert!(Path::new(first).is_absolute(), "{name:?} is {first:?}");
        }
    }

    #[test]
    fn libraries_whose_folder_the_loader_would_split_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["a b", "a:b"] {
            let libraries = folder.path().join(name);
            fs::create_dir(&libraries).expect("a folder");
            fs::write(libraries.join(REDIRECTOR), "").expect("it is written");
            let refused = command(Some(&libraries), OsStr::new("true"), &[]);
            assert!(matches!(refused, Err(Error::Unloadable { .. })), "{name}");
        }
    }
}
