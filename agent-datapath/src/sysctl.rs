//! Kernel settings: what we need, what was there before us, and putting that back.
//!
//! Values that outlive our own interfaces are recorded in a file before they are changed, once: the record is what
//! was there before agent-network, however often the node is set up again.

use std::{
    collections::BTreeMap,
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use crate::error::NetError;

/// A setting below /proc/sys and the value to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Components below /proc/sys, an interface name being one of them (it may hold a dot).
    path: Vec<String>,
    /// The value to have.
    value: &'static str,
    /// Whether the value from before is recorded: true for those that do not vanish with our interface.
    record: bool,
    /// Whether a kernel without the setting is fine (IPv6 that is switched off altogether).
    optional: bool,
}

impl Setting {
    fn new(path: &[&str], value: &'static str) -> Self {
        Self {
            path: path.iter().map(|&component| component.to_owned()).collect(),
            value,
            record: false,
            optional: false,
        }
    }

    fn recorded(mut self) -> Self {
        self.record = true;
        self
    }

    fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    fn file(&self) -> PathBuf {
        self.path
            .iter()
            .fold(PathBuf::from("/proc/sys"), |path, part| path.join(part))
    }

    /// The name with slashes, as sysctl(8) accepts it for any interface name.
    pub fn name(&self) -> String {
        self.path.join("/")
    }
}

/// The node's settings, the bridge being there already.
///
/// `rp_filter` is off because the mark decides the route, not the destination (datapath.md); IPv6 is off on the
/// bridge so that no host listener on `[::]` can be reached by a link-local address.
pub fn node_settings(bridge: &str) -> Vec<Setting> {
    vec![
        Setting::new(&["net", "ipv4", "ip_forward"], "1").recorded(),
        Setting::new(&["net", "ipv4", "conf", "all", "rp_filter"], "0").recorded(),
        Setting::new(&["net", "ipv4", "conf", "default", "rp_filter"], "0").recorded(),
        Setting::new(&["net", "ipv4", "conf", bridge, "rp_filter"], "0"),
        Setting::new(&["net", "ipv4", "conf", bridge, "send_redirects"], "0"),
        // a source-routed packet would go on to a hop that no verdict saw
        Setting::new(&["net", "ipv4", "conf", bridge, "accept_source_route"], "0"),
        Setting::new(&["net", "ipv6", "conf", bridge, "disable_ipv6"], "1").optional(),
    ]
}

/// Settings of one interface that must never speak IPv6: a pod's, or the host side of its veth.
pub fn no_ipv6(ifname: &str) -> Vec<Setting> {
    vec![
        Setting::new(&["net", "ipv6", "conf", ifname, "accept_ra"], "0").optional(),
        Setting::new(&["net", "ipv6", "conf", ifname, "disable_ipv6"], "1").optional(),
    ]
}

/// Makes the settings hold in the calling thread's network namespace; writes nothing that is right already.
///
/// With `record`, values from before are kept there first.
///
/// # Errors
/// `Refused` when a setting is not there, cannot be written, or the record cannot be kept (then nothing is changed).
pub fn ensure(settings: &[Setting], record: Option<&Path>) -> Result<(), NetError> {
    let mut changes = Vec::new();
    for setting in settings {
        match read(&setting.file()) {
            Ok(value) if value == setting.value => {}
            Ok(value) => changes.push((setting, value)),
            Err(error) if error.kind() == io::ErrorKind::NotFound && setting.optional => {}
            Err(source) => {
                return Err(NetError::refused(
                    format!("read {}", setting.name()),
                    source,
                ));
            }
        }
    }
    if let Some(record) = record {
        let before: Vec<_> = changes
            .iter()
            .filter(|(setting, _)| setting.record)
            .map(|(setting, value)| (setting.name(), value.clone()))
            .collect();
        keep(record, &before).map_err(|source| {
            NetError::refused(
                format!("record sysctl values in {}", record.display()),
                source,
            )
        })?;
    }
    for (setting, _) in changes {
        fs::write(setting.file(), setting.value).map_err(|source| {
            NetError::refused(
                format!("set {} to {}", setting.name(), setting.value),
                source,
            )
        })?;
    }
    Ok(())
}

/// Compares the settings with what the kernel has.
///
/// # Errors
/// Every one that is not as wanted: `Differs`, or `Refused` when it cannot be read.
pub fn check(settings: &[Setting]) -> Result<(), NetError> {
    let differences = settings
        .iter()
        .filter_map(|setting| match read(&setting.file()) {
            Ok(value) if value == setting.value => None,
            Ok(value) => Some(NetError::differs(setting.name(), value, setting.value)),
            Err(error) if error.kind() == io::ErrorKind::NotFound && setting.optional => None,
            Err(source) => Some(NetError::refused(
                format!("read {}", setting.name()),
                source,
            )),
        });
    NetError::of_all(differences.collect())
}

/// Puts recorded values back and removes the record. A setting that somebody changed meanwhile to something that is
/// neither ours nor the old value is theirs, and stays.
///
/// # Errors
/// `Refused` for the first value that cannot be written; the record stays then.
pub fn restore(settings: &[Setting], record: &Path) -> Result<(), NetError> {
    let recorded = match fs::read_to_string(record) {
        Ok(text) => parse(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            return Err(NetError::refused(
                format!("read {}", record.display()),
                source,
            ));
        }
    };
    for setting in settings.iter().filter(|setting| setting.record) {
        let Some(before) = recorded.get(&setting.name()) else {
            continue;
        };
        if read(&setting.file()).is_ok_and(|now| now == setting.value) {
            fs::write(setting.file(), before).map_err(|source| {
                NetError::refused(format!("set {} back to {before}", setting.name()), source)
            })?;
        }
    }
    fs::remove_file(record)
        .map_err(|source| NetError::refused(format!("remove {}", record.display()), source))
}

/// Settings that [`restore`] would put back: name, value now, value from before.
///
/// # Errors
/// `Refused` when the record is there and cannot be read.
pub fn unrestored(
    settings: &[Setting],
    record: &Path,
) -> Result<Vec<(String, String, String)>, NetError> {
    let recorded = match fs::read_to_string(record) {
        Ok(text) => parse(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => {
            return Err(NetError::refused(
                format!("read {}", record.display()),
                source,
            ));
        }
    };
    Ok(settings
        .iter()
        .filter(|setting| setting.record)
        .filter_map(|setting| {
            let before = recorded.get(&setting.name())?;
            let now = read(&setting.file()).ok()?;
            (now == setting.value && now != *before).then(|| (setting.name(), now, before.clone()))
        })
        .collect())
}

fn read(file: &Path) -> io::Result<String> {
    fs::read_to_string(file).map(|text| text.trim().to_owned())
}

/// Adds values to the record that are not in it yet; the first one written stays.
fn keep(record: &Path, before: &[(String, String)]) -> io::Result<()> {
    let mut known = match fs::read_to_string(record) {
        Ok(text) => parse(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
        Err(error) => return Err(error),
    };
    let count = known.len();
    for (name, value) in before {
        known.entry(name.clone()).or_insert_with(|| value.clone());
    }
    if known.len() == count {
        return Ok(());
    }
    let temporary = record.with_extension("tmp");
    let mut file = fs::File::create(&temporary)?;
    for (name, value) in &known {
        writeln!(file, "{name} = {value}")?;
    }
    file.sync_all()?;
    fs::rename(&temporary, record)?;
    match record.parent() {
        Some(directory) => fs::File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

/// Lines `name = value`; others are passed over.
fn parse(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_recorded_value_stays() {
        let directory = tempfile::tempdir().unwrap();
        let record = directory.path().join("sysctls");
        keep(&record, &[("net/ipv4/ip_forward".into(), "0".into())]).unwrap();
        keep(
            &record,
            &[
                ("net/ipv4/ip_forward".into(), "1".into()),
                ("net/ipv4/conf/all/rp_filter".into(), "2".into()),
            ],
        )
        .unwrap();
        let kept = parse(&fs::read_to_string(&record).unwrap());
        assert_eq!(kept["net/ipv4/ip_forward"], "0");
        assert_eq!(kept["net/ipv4/conf/all/rp_filter"], "2");
    }

    #[test]
    fn an_interface_name_with_a_dot_is_one_component() {
        let settings = no_ipv6("eth0.5");
        assert_eq!(
            settings[0].file(),
            PathBuf::from("/proc/sys/net/ipv6/conf/eth0.5/accept_ra")
        );
    }
}
