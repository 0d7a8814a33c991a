//! The iptables-compat mode's control of pods: the nftables table `bridge agent_network`.
//!
//! - `table`: what all pods share; `pod`: a pod's own chains; `lengths`: what well-formed packets are. All pure.
//! - `read`: pods and counters out of the rules that the kernel has.
//!
//! It says about every frame what the eBPF programs would say, and for the same reason; the tests send the same frames
//! through both. Pods come and go one at a time, each in one transaction, and the chains of all others stay as they are.
//! What redirects the packets that it passes is [`crate::iptables`]'s.

use std::{collections::BTreeMap, io, thread, time::Duration};

use agent_ebpf_common::Reason;

use crate::{
    error::NetError,
    load::DatapathConfig,
    maps::{CounterRow, PodEndpoint},
    nft::{
        self,
        encode::{self, Batch, Message},
        ruleset::{TABLE, interface},
        socket::{NetfilterSocket, attribute},
        value::{Chain, Family, SetKind, Table},
    },
};

mod lengths;
mod pod;
mod read;
mod table;

use read::Sums;
pub(crate) use table::LOG_BYTES;
pub use table::LOG_GROUP;

/// How often a change is tried anew because somebody else changed nftables between looking and writing.
const TRIES: u32 = 500;

/// The table of a node.
#[derive(Clone, Copy, Debug)]
pub struct Compat(());

/// A pod, by its host interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPod {
    /// Its host interface.
    pub ifname: String,
    /// The interface's index.
    pub ifindex: u32,
    /// What it is held to.
    pub endpoint: PodEndpoint,
}

impl Compat {
    /// Makes the table what `config` says; the pods in it stay. With a table of another version, or a broken one, the
    /// whole is written anew in one transaction, pods and all.
    ///
    /// # Errors
    /// `Refused` when the kernel says no; then nothing has changed.
    pub fn ensure(config: &DatapathConfig) -> Result<Self, NetError> {
        Self::ensure_with(config, &[])
    }

    /// As [`Self::ensure`], with these pods in it from the first packet on when the table has to be written.
    ///
    /// # Errors
    /// As [`Self::ensure`].
    pub fn ensure_with(config: &DatapathConfig, pods: &[HostPod]) -> Result<Self, NetError> {
        let socket = nft::open()?;
        let table = table::table(config, |_| (0, 0));
        let doing = failed("write", None);
        for _ in 0..TRIES {
            let generation = nft::read::generation(&socket).map_err(&doing)?;
            let Some(batch) = repair(&socket, config, &table, pods, generation)? else {
                return Ok(Self(()));
            };
            if commit(&socket, &batch).map_err(&doing)? {
                return Ok(Self(()));
            }
        }
        Err(doing(io::Error::from_raw_os_error(libc::ERESTART)))
    }

    /// Opens the table, and changes nothing.
    ///
    /// # Errors
    /// `Differs` when there is none, or it is switched off.
    pub fn open() -> Result<Self, NetError> {
        let socket = nft::open()?;
        let missing = |found: &str| NetError::differs(title(), found, "there");
        let found = find_table(&socket)?.ok_or_else(|| missing("missing"))?;
        if attribute(&found, encode::TABLE_FLAGS).is_some_and(|flags| flags != [0; 4]) {
            return Err(missing("switched off (flags set)"));
        }
        Ok(Self(()))
    }

    /// Whether there is a table.
    ///
    /// # Errors
    /// `Refused` when the kernel cannot be asked.
    pub fn is_present() -> Result<bool, NetError> {
        Ok(find_table(&nft::open()?)?.is_some())
    }

    /// Compares what all pods share with what [`Self::ensure`] makes.
    ///
    /// # Errors
    /// `Differs` for the first thing that is not so.
    pub fn check(config: &DatapathConfig) -> Result<(), NetError> {
        nft::check(&table::table(config, |_| (0, 0)))
    }

    /// Removes the table; fine when there is none.
    ///
    /// # Errors
    /// `Refused` when the kernel says no.
    pub fn remove() -> Result<(), NetError> {
        nft::remove(Family::Bridge, TABLE)
    }

    /// Holds an interface to a pod's addresses. Does nothing when it is held already.
    ///
    /// # Errors
    /// `NoLink` when there is no such interface, or `Refused` when the kernel says no; then nothing has changed.
    pub fn attach_pod(
        &self,
        ifname: &str,
        ifindex: u32,
        pod: &PodEndpoint,
    ) -> Result<(), NetError> {
        self.attach_pods(&[HostPod {
            ifname: ifname.to_owned(),
            ifindex,
            endpoint: *pod,
        }])
    }

    /// As [`Self::attach_pod`], of several in one transaction: each waits until the kernel has let go of the rules before, which
    /// takes it longer than everything else.
    ///
    /// # Errors
    /// As [`Self::attach_pod`]; then none of them has changed.
    pub fn attach_pods(&self, pods: &[HostPod]) -> Result<(), NetError> {
        let mut changes = Vec::new();
        for HostPod {
            ifname,
            ifindex,
            endpoint,
        } in pods
        {
            if nix::net::if_::if_nametoindex(ifname.as_str()) != Ok(*ifindex) {
                return Err(NetError::NoLink {
                    name: format!("{ifname} with index {ifindex}"),
                });
            }
            changes.push((
                ifname.as_str(),
                Some(pod::chains(ifname, *ifindex, endpoint)),
            ));
        }
        self.change(&changes)
    }

    /// Lets go of a pod, and folds its counters into the retired ones, in one transaction. Fine when there is nothing.
    ///
    /// # Errors
    /// `Refused` when the kernel says no.
    pub fn detach_pod(&self, ifname: &str) -> Result<(), NetError> {
        self.change(&[(ifname, None)])
    }

    /// Makes pods' chains be as given, or be gone, in one transaction.
    fn change(&self, pods: &[(&str, Option<[Chain; 4]>)]) -> Result<(), NetError> {
        let socket = nft::open()?;
        let doing = failed("write", pods.first().map(|(ifname, _)| *ifname));
        for _ in 0..TRIES {
            let generation = nft::read::generation(&socket).map_err(&doing)?;
            let mut due = Vec::new();
            for (ifname, wanted) in pods {
                let found = Found::read(&socket, ifname).map_err(&doing)?;
                let right = match wanted {
                    None => found.is_nothing(),
                    Some(chains) => {
                        found.leads && difference(&socket, chains).map_err(&doing)?.is_none()
                    }
                };
                if !right {
                    due.push((*ifname, found, wanted));
                }
            }
            if due.is_empty() {
                return Ok(());
            }
            // with nothing to replace there is nothing that somebody else could have changed
            let replaces = due.iter().any(|(_, found, _)| !found.is_nothing());
            let mut batch = Batch::begin(Family::Bridge, TABLE, replaces.then_some(generation));
            let mut sums = Sums::default();
            for (ifname, found, wanted) in due {
                found
                    .remove(&socket, ifname, &mut batch, &mut sums)
                    .map_err(&doing)?;
                if let Some(chains) = wanted {
                    add(&mut batch, ifname, chains);
                }
            }
            retire(&socket, &mut batch, sums).map_err(&doing)?;
            if commit(&socket, &batch.end()).map_err(&doing)? {
                return Ok(());
            }
        }
        Err(doing(io::Error::from_raw_os_error(libc::ERESTART)))
    }

    /// Checks that the interface is held to the pod's addresses.
    ///
    /// # Errors
    /// `Differs` for the first thing that is not so.
    pub fn check_pod(&self, ifname: &str, ifindex: u32, pod: &PodEndpoint) -> Result<(), NetError> {
        let socket = nft::open()?;
        let doing = failed("read", Some(ifname));
        let leads = Found::read(&socket, ifname).map_err(&doing)?.leads;
        let difference = if leads {
            difference(&socket, &pod::chains(ifname, ifindex, pod)).map_err(&doing)?
        } else {
            Some(format!("without {ifname} in map {}", table::PODS))
        };
        match difference {
            None => Ok(()),
            Some(found) => Err(NetError::differs(title(), found, "the pod's")),
        }
    }

    /// The pods in the table.
    ///
    /// # Errors
    /// `Refused` when the kernel cannot be asked.
    pub fn pods(&self) -> Result<Vec<HostPod>, NetError> {
        Ok(read::pods(&all_rules(&nft::open()?)?))
    }

    /// As [`Self::pods`], by the index of their host interface.
    ///
    /// # Errors
    /// As [`Self::pods`].
    pub fn endpoints(&self) -> Result<Vec<(u32, PodEndpoint)>, NetError> {
        let by_index: BTreeMap<u32, PodEndpoint> = self
            .pods()?
            .into_iter()
            .map(|pod| (pod.ifindex, pod.endpoint))
            .collect();
        Ok(by_index.into_iter().collect())
    }

    /// The counters. Sums over all rows never go back, also when pods go.
    ///
    /// # Errors
    /// `Refused` when the kernel cannot be asked.
    pub fn counters(&self) -> Result<Vec<CounterRow>, NetError> {
        Ok(read::counters(&all_rules(&nft::open()?)?))
    }
}

/// What is there of a pod.
struct Found {
    /// Whether the map leads from its interface to its first chain.
    leads: bool,
    /// Whether the map leads somewhere.
    mapped: bool,
    /// Its chains that are there.
    chains: Vec<String>,
}

impl Found {
    fn read(socket: &NetfilterSocket, ifname: &str) -> io::Result<Self> {
        let names = pod::names(ifname);
        let to = nft::absent_as_none(nft::read::leads_to(
            socket,
            Family::Bridge,
            TABLE,
            table::PODS,
            &interface(ifname),
        ))?;
        let mut chains = Vec::new();
        for name in &names {
            let question = encode::get(
                Message::GetChain,
                false,
                Family::Bridge,
                &[(encode::CHAIN_TABLE, TABLE), (encode::CHAIN_NAME, name)],
            );
            chains.extend(nft::absent_as_none(socket.one(&question))?.map(|_| name.clone()));
        }
        Ok(Self {
            leads: to.as_ref() == Some(&names[0]),
            mapped: to.is_some(),
            chains,
        })
    }

    fn is_nothing(&self) -> bool {
        !self.mapped && self.chains.is_empty()
    }

    /// Takes it away, and adds what it has counted to the sums.
    fn remove(
        &self,
        socket: &NetfilterSocket,
        ifname: &str,
        batch: &mut Batch,
        sums: &mut Sums,
    ) -> io::Result<()> {
        if self.mapped {
            batch.delete_key(table::PODS, &interface(ifname));
        }
        for name in &self.chains {
            sums.add(&nft::read::rules(
                socket,
                Family::Bridge,
                TABLE,
                Some(name),
            )?);
            batch.flush_chain(name);
        }
        for name in &self.chains {
            batch.delete_chain(name);
        }
        Ok(())
    }
}

/// Adds these to the retired counters.
fn retire(socket: &NetfilterSocket, batch: &mut Batch, mut sums: Sums) -> io::Result<()> {
    if sums.is_zero() {
        return Ok(());
    }
    let retired = nft::read::rules(socket, Family::Bridge, TABLE, Some(table::RETIRED))?;
    let stamp = retired
        .first()
        .and_then(|rule| encode::stamp(&rule.userdata));
    // a table that somebody took the chain out of is about to be written anew
    if let Some(stamp) = stamp {
        sums.add(&retired);
        batch.flush_chain(table::RETIRED);
        batch.add_rules(&table::retired(|reason| sums.of(reason)), stamp);
    }
    Ok(())
}

fn add(batch: &mut Batch, ifname: &str, chains: &[Chain; 4]) {
    for chain in chains {
        batch.add_chain(chain);
    }
    let generation = encode::chains_generation(TABLE, chains);
    for chain in chains {
        batch.add_rules(chain, generation);
    }
    batch.add_goto(table::PODS, &interface(ifname), &chains[0].name);
}

fn difference(socket: &NetfilterSocket, chains: &[Chain; 4]) -> io::Result<Option<String>> {
    let generation = encode::chains_generation(TABLE, chains);
    for chain in chains {
        let found = nft::chain_difference(socket, Family::Bridge, TABLE, chain, generation)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// What makes the table right; none when it is.
fn repair(
    socket: &NetfilterSocket,
    config: &DatapathConfig,
    table: &Table,
    pods: &[HostPod],
    generation: u32,
) -> Result<Option<Batch>, NetError> {
    if nft::difference(socket, table)?.is_none() {
        return Ok(None);
    }
    let mut batch = Batch::begin(Family::Bridge, TABLE, Some(generation));
    if nft::structure_difference(socket, table)?.is_none() {
        let settings = table
            .sets
            .iter()
            .filter(|set| matches!(set.kind, SetKind::Keys | SetKind::Ranges));
        for set in settings {
            batch.flush_elements(set.name);
            batch.add_elements(set.name, &set.elements);
        }
        return Ok(Some(batch.end()));
    }
    let structure = encode::generation(table);
    let rules = match find_table(socket)? {
        Some(_) => all_rules(socket)?,
        None => Vec::new(),
    };
    let mut sums = Sums::default();
    sums.add(&rules);
    let fresh = table::table(config, |reason: Reason| sums.of(reason));
    encode::add_fresh(&mut batch, &fresh, structure);
    let mut all: BTreeMap<String, HostPod> = read::pods(&rules)
        .into_iter()
        .map(|pod| (pod.ifname.clone(), pod))
        .collect();
    all.extend(pods.iter().map(|pod| (pod.ifname.clone(), pod.clone())));
    for pod in all.values() {
        add(
            &mut batch,
            &pod.ifname,
            &pod::chains(&pod.ifname, pod.ifindex, &pod.endpoint),
        );
    }
    Ok(Some(batch.end()))
}

/// Whether it was done; not when somebody else changed nftables since it was looked at.
fn commit(socket: &NetfilterSocket, batch: &Batch) -> io::Result<bool> {
    match socket.commit(batch) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ERESTART) => {
            // those that meet here again and again have different process numbers
            thread::sleep(Duration::from_micros(
                200 + u64::from(std::process::id() % 64) * 50,
            ));
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn find_table(socket: &NetfilterSocket) -> Result<Option<Vec<u8>>, NetError> {
    let question = encode::get(
        Message::GetTable,
        false,
        Family::Bridge,
        &[(encode::TABLE_NAME, TABLE)],
    );
    nft::absent_as_none(socket.one(&question)).map_err(failed("read", None))
}

fn all_rules(socket: &NetfilterSocket) -> Result<Vec<nft::read::FoundRule>, NetError> {
    nft::read::rules(socket, Family::Bridge, TABLE, None).map_err(failed("read", None))
}

fn title() -> String {
    nft::title(Family::Bridge, TABLE)
}

fn failed(action: &'static str, ifname: Option<&str>) -> impl Fn(io::Error) -> NetError + use<> {
    let of = ifname.map_or_else(String::new, |ifname| format!(" for {ifname}"));
    move |source| NetError::refused(format!("{action} {}{of}", title()), nft::explain(source))
}
