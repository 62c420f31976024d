import { amqp, deadLettering, first, name, tell, url } from './story.mjs';

const connection = await amqp.connect(url);
const channel = await connection.createConfirmChannel();
const dead = await deadLettering(channel);
channel.sendToQueue(name, Buffer.from('poison'), { headers: { tenant: 'acme' } });
channel.nack(await first(channel, name), false, false);
const message = await first(channel, dead, { noAck: true });
await connection.close();
tell({ body: message.content.toString(), headers: message.properties.headers });
