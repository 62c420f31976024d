/* Search in a site that is opened from the disk.
 *
 * The search runs in a Worker, and a browser starts none for a page that came from a file. A hidden frame can run the same
 * script: it has an event target and a postMessage of its own, which is all that the script asks for. The theme's offline
 * plugin would have a script for this fetched from a network; it leaves that when it finds one whose name is this one's.
 */
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}))
      const script = this.inside.document.createElement("script")
      script.src = url
      this.ready = new Promise((resolve, reject) => {
        script.onload = resolve
        script.onerror = reject
      })
      this.inside.document.body.append(script)
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", {data})))
    }
  }
}
