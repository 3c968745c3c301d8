//! What an engine reports to observers. Every method does nothing by default, so an unused one costs nothing.

use crate::units::Ps;
use ccl_schedule::{Land, Math};

/// What a PE does in a span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Waiting for a free slot.
    BlockedSend,
    /// Waiting for a token.
    BlockedRecv,
    /// Reading a slot.
    Read,
    /// Adding.
    Math,
    /// Copying within its memory.
    Copy,
}

/// Data that an operation starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A tile of a rank.
    Tile(u32, u32),
    /// A slot: channel and sequence number.
    Slot(u32, u32),
    /// Where a posted receive, or a receive that copies, has put the token of a channel.
    Landing(u32),
}

/// Receives everything that happens, in causal order.
pub trait Probe {
    /// A token was issued: its data is `from`, which is read during `span`.
    #[inline]
    fn issued(&mut self, _channel: u32, _seq: u32, _class: usize, _from: Source, _span: (Ps, Ps)) {}
    /// A link was busy with a token.
    #[inline]
    fn link(&mut self, _link: u32, _channel: u32, _from: Ps, _to: Ps) {}
    /// A token was written to its slot from `from` on, and is visible at `at`.
    #[inline]
    fn visible(&mut self, _channel: u32, _seq: u32, _class: usize, _from: Ps, _at: Ps) {}
    /// A token was moved out of its slot, for a posted receive or to be forwarded.
    #[inline]
    fn landed(&mut self, _channel: u32, _seq: u32, _class: usize, _from: Ps, _to: Ps) {}
    /// A tile was written: copied or added to.
    #[inline]
    fn wrote(&mut self, _rank: u32, _tile: u32, _land: Land, _from: Source, _span: (Ps, Ps)) {}
    /// A tile was computed from others; `from` is the data of the arguments that are tiles.
    #[inline]
    fn computed(&mut self, _rank: u32, _math: &Math, _to: u32, _from: [Option<Source>; 3], _span: (Ps, Ps)) {}
    /// A PE was busy or blocked.
    #[inline]
    fn span(&mut self, _rank: u32, _doing: Doing, _from: Ps, _to: Ps) {}
    /// A credit of a channel reached the sender.
    #[inline]
    fn credit(&mut self, _channel: u32, _seq: u32, _at: Ps) {}
    /// Whether [`Self::watermark`] is wanted soon; computing it has a cost for the engine.
    #[inline]
    fn wants_watermark(&self) -> bool {
        false
    }
    /// No movement that starts before `time` will be reported any more.
    #[inline]
    fn watermark(&mut self, _time: Ps) {}
}

/// Ignores everything.
pub struct NoProbe;

impl Probe for NoProbe {}

/// Both of two probes.
impl<A: Probe, B: Probe> Probe for (A, B) {
    #[inline]
    fn issued(&mut self, channel: u32, seq: u32, class: usize, from: Source, span: (Ps, Ps)) {
        self.0.issued(channel, seq, class, from, span);
        self.1.issued(channel, seq, class, from, span);
    }
    #[inline]
    fn link(&mut self, link: u32, channel: u32, from: Ps, to: Ps) {
        self.0.link(link, channel, from, to);
        self.1.link(link, channel, from, to);
    }
    #[inline]
    fn visible(&mut self, channel: u32, seq: u32, class: usize, from: Ps, at: Ps) {
        self.0.visible(channel, seq, class, from, at);
        self.1.visible(channel, seq, class, from, at);
    }
    #[inline]
    fn landed(&mut self, channel: u32, seq: u32, class: usize, from: Ps, to: Ps) {
        self.0.landed(channel, seq, class, from, to);
        self.1.landed(channel, seq, class, from, to);
    }
    #[inline]
    fn wrote(&mut self, rank: u32, tile: u32, land: Land, from: Source, span: (Ps, Ps)) {
        self.0.wrote(rank, tile, land, from, span);
        self.1.wrote(rank, tile, land, from, span);
    }
    #[inline]
    fn computed(&mut self, rank: u32, math: &Math, to: u32, from: [Option<Source>; 3], span: (Ps, Ps)) {
        self.0.computed(rank, math, to, from, span);
        self.1.computed(rank, math, to, from, span);
    }
    #[inline]
    fn span(&mut self, rank: u32, doing: Doing, from: Ps, to: Ps) {
        self.0.span(rank, doing, from, to);
        self.1.span(rank, doing, from, to);
    }
    #[inline]
    fn credit(&mut self, channel: u32, seq: u32, at: Ps) {
        self.0.credit(channel, seq, at);
        self.1.credit(channel, seq, at);
    }
    #[inline]
    fn wants_watermark(&self) -> bool {
        self.0.wants_watermark() || self.1.wants_watermark()
    }
    #[inline]
    fn watermark(&mut self, time: Ps) {
        self.0.watermark(time);
        self.1.watermark(time);
    }
}

impl<P: Probe + ?Sized> Probe for &mut P {
    #[inline]
    fn issued(&mut self, channel: u32, seq: u32, class: usize, from: Source, span: (Ps, Ps)) {
        (**self).issued(channel, seq, class, from, span);
    }
    #[inline]
    fn link(&mut self, link: u32, channel: u32, from: Ps, to: Ps) {
        (**self).link(link, channel, from, to);
    }
    #[inline]
    fn visible(&mut self, channel: u32, seq: u32, class: usize, from: Ps, at: Ps) {
        (**self).visible(channel, seq, class, from, at);
    }
    #[inline]
    fn landed(&mut self, channel: u32, seq: u32, class: usize, from: Ps, to: Ps) {
        (**self).landed(channel, seq, class, from, to);
    }
    #[inline]
    fn wrote(&mut self, rank: u32, tile: u32, land: Land, from: Source, span: (Ps, Ps)) {
        (**self).wrote(rank, tile, land, from, span);
    }
    #[inline]
    fn computed(&mut self, rank: u32, math: &Math, to: u32, from: [Option<Source>; 3], span: (Ps, Ps)) {
        (**self).computed(rank, math, to, from, span);
    }
    #[inline]
    fn span(&mut self, rank: u32, doing: Doing, from: Ps, to: Ps) {
        (**self).span(rank, doing, from, to);
    }
    #[inline]
    fn credit(&mut self, channel: u32, seq: u32, at: Ps) {
        (**self).credit(channel, seq, at);
    }
    #[inline]
    fn wants_watermark(&self) -> bool {
        (**self).wants_watermark()
    }
    #[inline]
    fn watermark(&mut self, time: Ps) {
        (**self).watermark(time);
    }
}

/// An optional probe: for outputs that may not be requested.
impl<P: Probe> Probe for Option<P> {
    #[inline]
    fn issued(&mut self, channel: u32, seq: u32, class: usize, from: Source, span: (Ps, Ps)) {
        if let Some(probe) = self {
            probe.issued(channel, seq, class, from, span);
        }
    }
    #[inline]
    fn link(&mut self, link: u32, channel: u32, from: Ps, to: Ps) {
        if let Some(probe) = self {
            probe.link(link, channel, from, to);
        }
    }
    #[inline]
    fn visible(&mut self, channel: u32, seq: u32, class: usize, from: Ps, at: Ps) {
        if let Some(probe) = self {
            probe.visible(channel, seq, class, from, at);
        }
    }
    #[inline]
    fn landed(&mut self, channel: u32, seq: u32, class: usize, from: Ps, to: Ps) {
        if let Some(probe) = self {
            probe.landed(channel, seq, class, from, to);
        }
    }
    #[inline]
    fn wrote(&mut self, rank: u32, tile: u32, land: Land, from: Source, span: (Ps, Ps)) {
        if let Some(probe) = self {
            probe.wrote(rank, tile, land, from, span);
        }
    }
    #[inline]
    fn computed(&mut self, rank: u32, math: &Math, to: u32, from: [Option<Source>; 3], span: (Ps, Ps)) {
        if let Some(probe) = self {
            probe.computed(rank, math, to, from, span);
        }
    }
    #[inline]
    fn span(&mut self, rank: u32, doing: Doing, from: Ps, to: Ps) {
        if let Some(probe) = self {
            probe.span(rank, doing, from, to);
        }
    }
    #[inline]
    fn credit(&mut self, channel: u32, seq: u32, at: Ps) {
        if let Some(probe) = self {
            probe.credit(channel, seq, at);
        }
    }
    #[inline]
    fn wants_watermark(&self) -> bool {
        self.as_ref().is_some_and(Probe::wants_watermark)
    }
    #[inline]
    fn watermark(&mut self, time: Ps) {
        if let Some(probe) = self {
            probe.watermark(time);
        }
    }
}
