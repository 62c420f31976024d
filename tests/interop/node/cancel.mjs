import { amqp, name, tell, url } from './story.mjs';

const connection = await amqp.connect(url);
const channel = await connection.createChannel();
await channel.assertQueue(name);
let resolve;
const told = new Promise((done) => { resolve = done; });
await channel.consume(name, resolve);
await (await connection.createChannel()).deleteQueue(name);
const message = await told;
await connection.close();
tell({ message });
