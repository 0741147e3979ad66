// An animated GIF89a from pictures (ImageData): one palette for all frames, LZW as the format wants it.
const BITS = 8;

export function gif(pictures, milliseconds) {
  const { width, height } = pictures[0];
  const palette = commonColours(pictures);
  const nearest = finder(palette);
  const out = [];
  const word = (n) => out.push(n & 255, (n >> 8) & 255);
  out.push(..."GIF89a".split("").map((letter) => letter.charCodeAt(0)));
  word(width);
  word(height);
  out.push(0xf0 | (BITS - 1), 0, 0);
  for (let i = 0; i < 256; i += 1) out.push(...(palette[i] ?? [0, 0, 0]));
  out.push(0x21, 0xff, 11, ..."NETSCAPE2.0".split("").map((letter) => letter.charCodeAt(0)), 3, 1, 0, 0, 0);
  pictures.forEach((picture, number) => {
    const pause = number === pictures.length - 1 ? 1500 : milliseconds;
    out.push(0x21, 0xf9, 4, 4);
    word(Math.max(2, Math.round(pause / 10)));
    out.push(0, 0, 0x2c);
    for (const n of [0, 0, width, height]) word(n);
    out.push(0, BITS);
    const pixels = new Uint8Array(width * height);
    for (let i = 0; i < pixels.length; i += 1) pixels[i] = nearest(picture.data, 4 * i);
    const packed = lzw(pixels);
    for (let at = 0; at < packed.length; at += 255) {
      const block = packed.slice(at, at + 255);
      out.push(block.length, ...block);
    }
    out.push(0);
  });
  out.push(0x3b);
  return new Blob([new Uint8Array(out)], { type: "image/gif" });
}

const key = (data, at) => (data[at] << 16) | (data[at + 1] << 8) | data[at + 2];

// The 256 commonest colours; the others, of the edges of letters, become the nearest of them.
function commonColours(pictures) {
  const seen = new Map();
  for (const { data } of pictures) {
    for (let at = 0; at < data.length; at += 4) {
      const name = key(data, at);
      const entry = seen.get(name);
      if (entry) entry[0] += 1;
      else seen.set(name, [1, [data[at], data[at + 1], data[at + 2]]]);
    }
  }
  const sorted = [...seen.values()].sort((a, b) => b[0] - a[0]);
  return sorted.slice(0, 256).map(([, colour]) => colour);
}

function finder(palette) {
  const known = new Map();
  return (data, at) => {
    const name = key(data, at);
    let found = known.get(name);
    if (found === undefined) {
      let least = Infinity;
      palette.forEach(([red, green, blue], i) => {
        const far = (red - data[at]) ** 2 + (green - data[at + 1]) ** 2 + (blue - data[at + 2]) ** 2;
        if (far < least) [least, found] = [far, i];
      });
      known.set(name, found);
    }
    return found;
  };
}

function lzw(pixels) {
  const clear = 1 << BITS;
  const out = [];
  let [held, count] = [0, 0];
  let size = BITS + 1;
  let next = clear + 2;
  let table = new Map();
  const write = (code) => {
    held |= code << count;
    count += size;
    while (count >= 8) {
      out.push(held & 255);
      held >>>= 8;
      count -= 8;
    }
  };
  write(clear);
  let prefix = pixels[0];
  for (let i = 1; i < pixels.length; i += 1) {
    const pair = prefix * 256 + pixels[i];
    const code = table.get(pair);
    if (code !== undefined) {
      prefix = code;
      continue;
    }
    write(prefix);
    if (next < 4096) {
      table.set(pair, next);
      if (next >= 1 << size) size += 1;
      next += 1;
    } else {
      write(clear);
      table = new Map();
      size = BITS + 1;
      next = clear + 2;
    }
    prefix = pixels[i];
  }
  write(prefix);
  write(clear + 1);
  if (count > 0) out.push(held & 255);
  return out;
}
