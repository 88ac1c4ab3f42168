// A list of any length: only the rows that can be seen are in the document.

const OVERSCAN = 6;
const TALLEST = 2e6; // browsers stop at 16 to 33 million pixels, and lose precision before: beyond, scrolling is scaled

class VirtualList {
  // `render(row, index)` fills an empty row element; `header` stays at the top.
  constructor(container, { rowHeight, render, header = null }) {
    this.container = container;
    this.rowHeight = rowHeight;
    this.render = render;
    this.header = header;
    this.count = 0;
    this.rows = new Map();
    this.space = element("div", { class: "space", role: "presentation" });
    container.replaceChildren(...(header ? [header] : []), this.space);
    container.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(container);
  }

  get viewHeight() {
    return Math.max(0, this.container.clientHeight - (this.header?.offsetHeight ?? 0));
  }

  get pageSize() {
    return Math.max(1, Math.floor(this.viewHeight / this.rowHeight) - 1);
  }

  get factor() {
    const full = this.count * this.rowHeight;
    return full <= TALLEST ? 1 : (full - this.viewHeight) / (TALLEST - this.viewHeight);
  }

  setCount(count) {
    this.count = count;
    this.space.style.height = `${Math.min(count * this.rowHeight, TALLEST)}px`;
    this.refresh();
  }

  refresh() {
    this.rows.clear();
    this.space.replaceChildren();
    this.draw();
  }

  draw() {
    const offset = this.container.scrollTop * this.factor;
    const first = Math.max(0, Math.floor(offset / this.rowHeight) - OVERSCAN);
    const last = Math.min(this.count, Math.ceil((offset + this.viewHeight) / this.rowHeight) + OVERSCAN);
    for (const [index, row] of this.rows) {
      if (index < first || index >= last) {
        row.remove();
        this.rows.delete(index);
      }
    }
    for (let index = first; index < last; index++) {
      let row = this.rows.get(index);
      if (!row) {
        row = element("div", { class: "row" });
        this.render(row, index);
        this.rows.set(index, row);
        this.space.append(row);
      }
      row.style.transform = `translateY(${this.container.scrollTop + index * this.rowHeight - offset}px)`;
    }
  }

  // Scrolls as little as needed; to the middle if the row is far away.
  show(index) {
    const offset = this.container.scrollTop * this.factor;
    const top = index * this.rowHeight;
    if (top >= offset && top + this.rowHeight <= offset + this.viewHeight) return;
    const near = top >= offset - 3 * this.rowHeight && top <= offset + this.viewHeight + 3 * this.rowHeight;
    const end = top - this.viewHeight + this.rowHeight;
    const middle = top - (this.viewHeight - this.rowHeight) / 2;
    this.container.scrollTop = (near ? (top < offset ? top : end) : middle) / this.factor;
    this.draw();
  }
}

// Where the arrow keys lead from a place in a list; null for other keys.
function keyTarget(key, place, count, page) {
  const targets = {
    ArrowDown: place + 1,
    ArrowUp: place - 1,
    PageDown: place + page,
    PageUp: place - page,
    Home: 0,
    End: count - 1,
  };
  return key in targets && count > 0 ? Math.min(count - 1, Math.max(0, targets[key])) : null;
}
