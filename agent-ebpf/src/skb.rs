//! Reading an skb.

use core::mem::MaybeUninit;

use agent_ebpf_common::packet::Packet;
use aya_ebpf::{EbpfContext as _, helpers::generated::bpf_skb_load_bytes, programs::TcContext};

/// The packet that a TC program runs on.
pub(crate) struct Skb<'a>(&'a TcContext);

impl<'a> Skb<'a> {
    #[inline(always)]
    pub(crate) const fn new(ctx: &'a TcContext) -> Self {
        Self(ctx)
    }

    /// The interface the packet came in on.
    #[inline(always)]
    pub(crate) fn ifindex(&self) -> u32 {
        // SAFETY: the kernel passes a valid context; the verifier checks the access.
        unsafe { (*self.0.skb.skb).ifindex }
    }

    /// The packet's mark.
    #[inline(always)]
    pub(crate) fn mark(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.0.skb.skb).mark }
    }
}

/// Bytes on a word boundary: the compiler reads fields of others byte by byte.
#[repr(C, align(8))]
struct Aligned<const N: usize>([u8; N]);

impl Packet for Skb<'_> {
    #[inline(always)]
    fn length(&self) -> u32 {
        self.0.len()
    }

    #[inline(always)]
    fn has_vlan_tag(&self) -> bool {
        // SAFETY: as above.
        unsafe { (*self.0.skb.skb).vlan_present != 0 }
    }

    /// Copies by helper, because a header may lie in a fragment of the skb, where direct access does not reach.
    #[inline(always)]
    fn load<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        let mut header = MaybeUninit::<Aligned<N>>::uninit();
        // SAFETY: the kernel writes all of the first N bytes, or fails; the type may be longer, for its alignment.
        let result = unsafe {
            bpf_skb_load_bytes(
                self.0.as_ptr(),
                offset,
                header.as_mut_ptr().cast(),
                N as u32,
            )
        };
        // SAFETY: the N bytes were written; what follows them is padding.
        (result == 0).then(|| unsafe { header.assume_init() }.0)
    }
}
