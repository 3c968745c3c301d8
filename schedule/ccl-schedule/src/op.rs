//! The operations that a processing element executes, and the names of its directions.

use std::fmt;

/// A direction of a processing element: the name of one queue pair.
///
/// Names are those of `ccl.yaml`. `up`/`down` serve the third level of a hierarchy, `x0`..`x31` the
/// partner across bit k in recursive doubling, `p1`..`p63` the rank that is so many ahead, around the circle of
/// all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dir(u8);

impl Dir {
    /// East.
    pub const E: Dir = Dir(0);
    /// West.
    pub const W: Dir = Dir(1);
    /// North.
    pub const N: Dir = Dir(2);
    /// South.
    pub const S: Dir = Dir(3);
    /// Towards the root of a tree.
    pub const PARENT: Dir = Dir(4);
    /// Towards the left subtree.
    pub const CHILD_LEFT: Dir = Dir(5);
    /// Towards the right subtree.
    pub const CHILD_RIGHT: Dir = Dir(6);
    /// To the next SIP.
    pub const UP: Dir = Dir(7);
    /// To the previous SIP.
    pub const DOWN: Dir = Dir(8);
    /// One more than the largest index, for tables.
    pub const COUNT: usize = 104;

    /// The partner whose rank differs in bit `bit` (below 32).
    pub const fn exchange(bit: u32) -> Dir {
        assert!(bit < 32);
        Dir(9 + bit as u8)
    }

    /// The rank that is `ahead` (1 to 63) ranks ahead.
    pub const fn ahead(ahead: u32) -> Dir {
        assert!(0 < ahead && ahead < 64);
        Dir(40 + ahead as u8)
    }

    /// Every direction, by index.
    pub fn all() -> impl Iterator<Item = Dir> {
        (0..Dir::COUNT as u8).map(Dir)
    }

    /// The direction of a name, as it is printed.
    pub fn parse(name: &str) -> Option<Dir> {
        Dir::all().find(|dir| dir.to_string() == name)
    }

    /// A small number, unique per direction and below [`Dir::COUNT`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Dir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 9] = ["E", "W", "N", "S", "parent", "child_left", "child_right", "up", "down"];
        match NAMES.get(self.index()) {
            Some(name) => f.write_str(name),
            None if self.0 > 40 => write!(f, "p{}", self.0 - 40),
            None => write!(f, "x{}", self.0 - 9),
        }
    }
}

impl fmt::Debug for Dir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Where an operation takes its data from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tile {
    /// A tile of the rank's own memory: below `chunks` a chunk of the tensor, from there on a scratch tile.
    Mem(u32),
    /// The slot that a `recv` with [`Land::Forward`] holds in this direction; it stays held.
    Held(Dir),
    /// The same slot for the last time: its credit is returned after this use.
    Take(Dir),
}

/// What a `recv` does with the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Land {
    /// Overwrite the tile.
    Copy,
    /// Add to the tile.
    Reduce,
    /// Leave the data in the slot and hold it for [`Tile::Held`] and [`Tile::Take`]; the tile is untouched.
    Forward,
}

/// One operation of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Send a tile; blocks only while the peer's slots are full. The token carries `chunk` as its label.
    Send {
        /// The direction to send in.
        dir: Dir,
        /// The chunk that the data belongs to. The number of a scratch tile says that the data has the size of
        /// that tile and belongs to whatever chunk it was made from.
        chunk: u32,
        /// The data.
        from: Tile,
    },
    /// Wait for the next token of a direction and use it.
    Recv {
        /// The direction to receive from.
        dir: Dir,
        /// The tile to land in; the sender's label must name the same chunk.
        tile: u32,
        /// What to do with the data.
        land: Land,
    },
    /// Start a receive without blocking; the slot is read as soon as the token is visible. One per direction
    /// at a time.
    RecvAsync {
        /// The direction to receive from.
        dir: Dir,
        /// The tile to land in; it changes at the wait, not before.
        tile: u32,
        /// What to do with the data ([`Land::Forward`] is not possible here).
        land: Land,
    },
    /// Wait for the posted receive of a direction.
    Wait {
        /// The direction of the posted receive.
        dir: Dir,
    },
    /// Overwrite a tile with another tile or a held slot.
    Copy {
        /// The source.
        from: Tile,
        /// The tile that is overwritten.
        to: u32,
    },
    /// Add a tile or a held slot to a tile.
    Reduce {
        /// The source.
        from: Tile,
        /// The tile that is added to.
        to: u32,
    },
    /// Write a result into the tensor: like `Copy`, and the chunk may not be written again.
    Store {
        /// The tile that holds the result.
        from: u32,
        /// The chunk of the tensor.
        to: u32,
    },
    /// Compute a tile from others; [`Program::math`](crate::Program::math) says what.
    Math {
        /// The number of the computation on this rank.
        number: u32,
        /// The tile that is overwritten.
        to: u32,
    },
}

/// A function of tiles, element by element unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Function {
    /// a + b.
    Add,
    /// a - b.
    Sub,
    /// a * b.
    Mul,
    /// a / b.
    Div,
    /// The larger of a and b; NaN when one is.
    Maximum,
    /// The smaller of a and b; NaN when one is.
    Minimum,
    /// a * b + c, rounded once.
    Fma,
    /// a, not below b and not above c.
    Clamp,
    /// The smallest whole number that is not below a / b.
    CeilDiv,
    /// exp(a) over the sum of exp(a), along the last dimension, which has this many elements.
    Softmax(u32),
}

impl Function {
    /// The name in messages and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Function::Add => "add",
            Function::Sub => "sub",
            Function::Mul => "mul",
            Function::Div => "div",
            Function::Maximum => "maximum",
            Function::Minimum => "minimum",
            Function::Fma => "fma",
            Function::Clamp => "clamp",
            Function::CeilDiv => "ceil_div",
            Function::Softmax(_) => "softmax",
        }
    }
}

/// An argument of a computation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operand {
    /// The function takes fewer.
    None,
    /// A tile or a held slot.
    Tile(Tile),
    /// The same number for every element.
    Scalar(f32),
}

/// What an [`Op::Math`] computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Math {
    /// The function.
    pub function: Function,
    /// Its arguments a, b and c.
    pub args: [Operand; 3],
}

impl Math {
    /// The arguments that are tiles.
    pub fn tiles(&self) -> impl Iterator<Item = Tile> + '_ {
        self.args.iter().filter_map(|arg| if let Operand::Tile(tile) = arg { Some(*tile) } else { None })
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tile::Mem(tile) => write!(f, "tile {tile}"),
            Tile::Held(dir) => write!(f, "held {dir}"),
            Tile::Take(dir) => write!(f, "take {dir}"),
        }
    }
}

impl Land {
    /// The word used in dumps and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Land::Copy => "copy",
            Land::Reduce => "reduce",
            Land::Forward => "forward",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Send { dir, chunk, from } => write!(f, "send({dir}, chunk {chunk}, {from})"),
            Op::Recv { dir, tile, land } => write!(f, "recv({dir}, tile {tile}, {})", land.name()),
            Op::RecvAsync { dir, tile, land } => write!(f, "recv_async({dir}, tile {tile}, {})", land.name()),
            Op::Wait { dir } => write!(f, "wait({dir})"),
            Op::Copy { from, to } => write!(f, "copy({from}, tile {to})"),
            Op::Reduce { from, to } => write!(f, "reduce({from}, tile {to})"),
            Op::Store { from, to } => write!(f, "store(tile {from}, chunk {to})"),
            Op::Math { number, to } => write!(f, "math({number}, tile {to})"),
        }
    }
}
