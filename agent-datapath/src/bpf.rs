//! The bpf(2) calls on links that aya has no way to make.
//!
//! aya 0.14 tells neither what a link is attached to, nor updates a link that was loaded from a pin for every kind
//! of program. Everything else goes through aya.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_PROG_QUERY: libc::c_long = 16;
const BPF_LINK_UPDATE: libc::c_long = 29;
const BPF_LINK_DETACH: libc::c_long = 34;

const BPF_SK_LOOKUP: u32 = 36;
const BPF_TCX_INGRESS: u32 = 46;
const BPF_LINK_TYPE_NETNS: u32 = 5;
const BPF_LINK_TYPE_TCX: u32 = 11;

/// What a link is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkTarget {
    /// A network namespace, by the inode of its file; 0 when it is gone.
    Netns(u32),
    /// An interface by its index; 0 when it is gone.
    Interface(u32),
    /// Something that we attach to nothing.
    Other,
}

/// A link, opened from its pin.
#[derive(Debug)]
pub(crate) struct PinnedLink {
    fd: OwnedFd,
    /// The program it runs.
    pub(crate) program_id: u32,
    /// What it is attached to.
    pub(crate) target: LinkTarget,
}

impl PinnedLink {
    /// Opens a pinned link; nothing when there is no such pin.
    #[expect(
        unsafe_code,
        reason = "takes ownership of the descriptor that the kernel returned"
    )]
    pub(crate) fn open(path: &Path) -> io::Result<Option<Self>> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let mut get = ObjGet {
            pathname: path.as_ptr() as u64,
            ..ObjGet::default()
        };
        let fd = match bpf(BPF_OBJ_GET, &mut get) {
            Ok(fd) => fd,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        // SAFETY: the call succeeded, so this is a new descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut info = LinkInfo::default();
        let mut get_info = ObjGetInfo {
            bpf_fd: fd.as_raw_fd().cast_unsigned(),
            info_len: size_of::<LinkInfo>() as u32,
            info: (&raw mut info) as u64,
        };
        bpf(BPF_OBJ_GET_INFO_BY_FD, &mut get_info)?;
        let target = match info.kind {
            BPF_LINK_TYPE_NETNS => LinkTarget::Netns(info.target),
            BPF_LINK_TYPE_TCX => LinkTarget::Interface(info.target),
            _ => LinkTarget::Other,
        };
        Ok(Some(Self {
            fd,
            program_id: info.program_id,
            target,
        }))
    }

    /// Puts another program in the place of the link's, in one step.
    pub(crate) fn update(&self, program: &impl AsFd) -> io::Result<()> {
        let mut update = LinkUpdate {
            link_fd: self.fd.as_raw_fd().cast_unsigned(),
            new_program_fd: program.as_fd().as_raw_fd().cast_unsigned(),
            ..LinkUpdate::default()
        };
        bpf(BPF_LINK_UPDATE, &mut update).map(|_| ())
    }

    /// Takes the program off, at once: the kernel takes its time with links whose pin is merely removed.
    pub(crate) fn detach(&self) -> io::Result<()> {
        let mut detach = LinkDetach {
            link_fd: self.fd.as_raw_fd().cast_unsigned(),
        };
        bpf(BPF_LINK_DETACH, &mut detach).map(|_| ())
    }
}

/// The IDs of the SK_LOOKUP programs of a network namespace.
pub(crate) fn socket_lookups(netns: &impl AsFd) -> io::Result<Vec<u32>> {
    let mut ids = vec![0_u32; MAX_SOCKET_LOOKUPS];
    let mut query = ProgQuery {
        target_fd: netns.as_fd().as_raw_fd().cast_unsigned(),
        attach_type: BPF_SK_LOOKUP,
        prog_ids: ids.as_mut_ptr() as u64,
        prog_count: MAX_SOCKET_LOOKUPS as u32,
        ..ProgQuery::default()
    };
    bpf(BPF_PROG_QUERY, &mut query)?;
    ids.truncate(query.prog_count as usize);
    Ok(ids)
}

/// The TCX programs at an interface's ingress in their order, each with the ID of its link; 0 for one without.
pub(crate) fn tcx_links(ifindex: u32) -> io::Result<Vec<(u32, u32)>> {
    let mut programs = vec![0_u32; MAX_TCX];
    let mut links = vec![0_u32; MAX_TCX];
    let mut query = ProgQuery {
        target_fd: ifindex,
        attach_type: BPF_TCX_INGRESS,
        prog_ids: programs.as_mut_ptr() as u64,
        prog_count: MAX_TCX as u32,
        link_ids: links.as_mut_ptr() as u64,
        ..ProgQuery::default()
    };
    bpf(BPF_PROG_QUERY, &mut query)?;
    let count = (query.prog_count as usize).min(MAX_TCX);
    Ok(programs.into_iter().zip(links).take(count).collect())
}

/// `BPF_MPROG_MAX`.
const MAX_TCX: usize = 64;

/// The kernel allows no more in one namespace.
const MAX_SOCKET_LOOKUPS: usize = 64;

/// Asks whether this process may use bpf(2) at all, by making a small map that is gone at once.
///
/// aya asks for the kernel's features before anything else and takes every refusal for a missing feature, so that the
/// error which comes out in the end is about something else.
#[expect(
    unsafe_code,
    reason = "takes ownership of the descriptor that the kernel returned"
)]
pub(crate) fn is_allowed() -> io::Result<()> {
    const LPM_TRIE: u32 = 11;
    const NO_PREALLOC: u32 = 1;
    let mut create = MapCreate {
        kind: LPM_TRIE,
        key_size: 8,
        value_size: 4,
        max_entries: 1,
        flags: NO_PREALLOC,
    };
    let fd = bpf(BPF_MAP_CREATE, &mut create)?;
    // SAFETY: the call succeeded, so this is a new descriptor that nobody else owns.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// `bpf_attr` of BPF_MAP_CREATE.
#[repr(C)]
#[derive(Default)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

/// `bpf_attr` of BPF_PROG_QUERY.
#[repr(C)]
#[derive(Default)]
struct ProgQuery {
    target_fd: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_count: u32,
    padding: u32,
    prog_attach_flags: u64,
    link_ids: u64,
    link_attach_flags: u64,
    revision: u64,
}

/// `bpf_attr` of BPF_LINK_DETACH.
#[repr(C)]
#[derive(Default)]
struct LinkDetach {
    link_fd: u32,
}

/// `bpf_attr` of BPF_OBJ_GET.
#[repr(C)]
#[derive(Default)]
struct ObjGet {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// `bpf_attr` of BPF_OBJ_GET_INFO_BY_FD.
#[repr(C)]
#[derive(Default)]
struct ObjGetInfo {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// `bpf_attr` of BPF_LINK_UPDATE.
#[repr(C)]
#[derive(Default)]
struct LinkUpdate {
    link_fd: u32,
    new_program_fd: u32,
    flags: u32,
    old_program_fd: u32,
}

/// The beginning of `bpf_link_info`, with room for what newer kernels add.
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program_id: u32,
    padding: u32,
    /// `netns.netns_ino` or `tcx.ifindex`: first in the union.
    target: u32,
    attach_type: u32,
    rest: [u64; 8],
}

/// Calls bpf(2) with one of the structures above.
#[expect(unsafe_code, reason = "aya exports no bpf(2) call for these commands")]
fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<i32> {
    // SAFETY: `attr` is a whole `#[repr(C)]` prefix of `bpf_attr` for this command, and lives through the call; the
    // pointers in it do too.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attr, size_of::<T>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result as i32)
}
