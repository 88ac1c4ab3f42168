// The data of the page: compressed blocks in script elements, unpacked when they are needed.

const BLOCK_RECORDS = 400;
const KEPT_BLOCKS = 12;

async function unpack(name) {
  const holder = find(name);
  if (!holder) return null;
  const text = atob(holder.textContent);
  const bytes = new Uint8Array(text.length);
  for (let place = 0; place < text.length; place++) bytes[place] = text.charCodeAt(place);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// One step and rank: its list of records, and their details.
class Part {
  constructor(number, info) {
    this.number = number;
    this.info = info;
    this.loaded = null;
    this.blocks = new Map();
  }

  get label() {
    return [this.info.run, this.info.step, this.info.rank].filter(Boolean).join(" / ") || "–";
  }

  get column() {
    return [this.info.run, this.info.rank].filter(Boolean).join(" / ") || "–";
  }

  load() {
    this.loaded ??= this.unpackList();
    return this.loaded;
  }

  async unpackList() {
    const list = await unpack(`list-${this.number}`);
    this.names = list.names;
    this.other = list.other;
    this.status = list.status;
    this.modules = list.modules;
    this.module = list.module;
    this.texts = list.texts;
    this.cells = list.cells;
    this.lower = list.names.map((name, place) => `${name} ${list.other[place] ?? ""}`.toLowerCase());
    return this;
  }

  cell(column, place) {
    const value = this.cells[column][place];
    return Array.isArray(value) ? this.texts[value[0]] : value;
  }

  positionOf(name) {
    this.positions ??= new Map(this.names.map((known, place) => [known, place]).reverse());
    return this.positions.get(name) ?? -1;
  }

  async detail(place) {
    const number = Math.floor(place / BLOCK_RECORDS);
    if (!this.blocks.has(number)) {
      if (this.blocks.size >= KEPT_BLOCKS) this.blocks.delete(this.blocks.keys().next().value);
      this.blocks.set(number, unpack(`detail-${this.number}-${number}`));
    }
    const block = await this.blocks.get(number);
    return block[place % BLOCK_RECORDS];
  }
}
