// What is chosen at the moment, and who wants to know when it changes.

class Store {
  constructor(values) {
    this.values = values;
    this.listeners = [];
  }

  get(name) {
    return this.values[name];
  }

  // Calls `listener` after any of the named values was set to something else.
  on(names, listener) {
    this.listeners.push([new Set(names), listener]);
  }

  set(changes) {
    const changed = Object.keys(changes).filter((name) => this.values[name] !== changes[name]);
    Object.assign(this.values, changes);
    for (const [names, listener] of this.listeners) {
      if (changed.some((name) => names.has(name))) listener();
    }
  }
}
